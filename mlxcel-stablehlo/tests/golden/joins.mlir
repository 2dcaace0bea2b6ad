module @joins {
  func.func public @main(%x: tensor<2x3x4xf32>, %y: tensor<2x5x4xf32>, %half: tensor<6x4xbf16>, %i: tensor<3xui8>, %truth: tensor<3xi1>) -> (tensor<3xf32>, tensor<6xbf16>, tensor<2x3x4xf32>, tensor<ui8>, tensor<ui8>, tensor<i1>, tensor<i1>, tensor<2x3xf32>, tensor<2x3xi64>, tensor<ui8>, tensor<i32>, tensor<2x3x5xf32>, tensor<6x6xf32>, tensor<3x3xui32>) {
    %0 = stablehlo.iota dim = 2 : tensor<2x3x4xi64>
    %1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %2 = stablehlo.constant dense<9223372036854775807> : tensor<i64>
    %3:2 = stablehlo.reduce(%x init: %1), (%0 init: %2) across dimensions = [2] : (tensor<2x3x4xf32>, tensor<2x3x4xi64>, tensor<f32>, tensor<i64>) -> (tensor<2x3xf32>, tensor<2x3xi64>)
    reducer(%4: tensor<f32>, %5: tensor<f32>) (%6: tensor<i64>, %7: tensor<i64>) {
      %8 = stablehlo.compare GT, %4, %5, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %9 = stablehlo.compare EQ, %4, %5, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %10 = stablehlo.compare LT, %6, %7, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %11 = stablehlo.compare NE, %4, %4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %12 = stablehlo.compare NE, %5, %5, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %13 = stablehlo.and %11, %12 : tensor<i1>
      %14 = stablehlo.xor %12, %13 : tensor<i1>
      %15 = stablehlo.or %8, %14 : tensor<i1>
      %16 = stablehlo.or %9, %13 : tensor<i1>
      %17 = stablehlo.and %16, %10 : tensor<i1>
      %18 = stablehlo.or %15, %17 : tensor<i1>
      %19 = stablehlo.select %18, %4, %5 : tensor<i1>, tensor<f32>
      %20 = stablehlo.select %18, %6, %7 : tensor<i1>, tensor<i64>
      stablehlo.return %19, %20 : tensor<f32>, tensor<i64>
    }
    %21 = stablehlo.iota dim = 0 : tensor<3xi32>
    %22 = stablehlo.constant dense<0> : tensor<ui8>
    %23 = stablehlo.constant dense<2147483647> : tensor<i32>
    %24:2 = stablehlo.reduce(%i init: %22), (%21 init: %23) across dimensions = [0] : (tensor<3xui8>, tensor<3xi32>, tensor<ui8>, tensor<i32>) -> (tensor<ui8>, tensor<i32>)
    reducer(%25: tensor<ui8>, %26: tensor<ui8>) (%27: tensor<i32>, %28: tensor<i32>) {
      %29 = stablehlo.compare GT, %25, %26, UNSIGNED : (tensor<ui8>, tensor<ui8>) -> tensor<i1>
      %30 = stablehlo.compare EQ, %25, %26, UNSIGNED : (tensor<ui8>, tensor<ui8>) -> tensor<i1>
      %31 = stablehlo.compare LT, %27, %28, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %32 = stablehlo.and %30, %31 : tensor<i1>
      %33 = stablehlo.or %29, %32 : tensor<i1>
      %34 = stablehlo.select %33, %25, %26 : tensor<i1>, tensor<ui8>
      %35 = stablehlo.select %33, %27, %28 : tensor<i1>, tensor<i32>
      stablehlo.return %34, %35 : tensor<ui8>, tensor<i32>
    }
    %36 = stablehlo.constant dense<0.0> : tensor<f32>
    %37 = stablehlo.reduce(%x init: %36) applies stablehlo.add across dimensions = [0, 2] : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<3xf32>
    %38 = stablehlo.constant dense<0xFF80> : tensor<bf16>
    %39 = stablehlo.reduce(%half init: %38) applies stablehlo.maximum across dimensions = [1] : (tensor<6x4xbf16>, tensor<bf16>) -> tensor<6xbf16>
    %40 = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %41 = stablehlo.reduce(%x init: %40) applies stablehlo.minimum across dimensions = [] : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x3x4xf32>
    %42 = stablehlo.constant dense<1> : tensor<ui8>
    %43 = stablehlo.reduce(%i init: %42) applies stablehlo.multiply across dimensions = [0] : (tensor<3xui8>, tensor<ui8>) -> tensor<ui8>
    %44 = stablehlo.constant dense<0> : tensor<ui8>
    %45 = stablehlo.reduce(%i init: %44) applies stablehlo.maximum across dimensions = [0] : (tensor<3xui8>, tensor<ui8>) -> tensor<ui8>
    %46 = stablehlo.constant dense<true> : tensor<i1>
    %47 = stablehlo.reduce(%truth init: %46) applies stablehlo.and across dimensions = [0] : (tensor<3xi1>, tensor<i1>) -> tensor<i1>
    %48 = stablehlo.constant dense<false> : tensor<i1>
    %49 = stablehlo.reduce(%truth init: %48) applies stablehlo.or across dimensions = [0] : (tensor<3xi1>, tensor<i1>) -> tensor<i1>
    %50 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x3x5xf32>
    %51 = stablehlo.dot_general %half, %half, contracting_dims = [1] x [1] : (tensor<6x4xbf16>, tensor<6x4xbf16>) -> tensor<6x6xf32>
    %52 = stablehlo.dot_general %i, %i, contracting_dims = [] x [] : (tensor<3xui8>, tensor<3xui8>) -> tensor<3x3xui32>
    return %37, %39, %41, %43, %45, %47, %49, %3#0, %3#1, %24#0, %24#1, %50, %51, %52 : tensor<3xf32>, tensor<6xbf16>, tensor<2x3x4xf32>, tensor<ui8>, tensor<ui8>, tensor<i1>, tensor<i1>, tensor<2x3xf32>, tensor<2x3xi64>, tensor<ui8>, tensor<i32>, tensor<2x3x5xf32>, tensor<6x6xf32>, tensor<3x3xui32>
  }
}
