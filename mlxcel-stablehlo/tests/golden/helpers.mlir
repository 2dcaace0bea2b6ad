module @helpers {
  func.func public @main(%model_embed_tokens_weight: tensor<16x8xbf16>, %tokens: tensor<3xi32>, %q_weight: tensor<16x8xbf16>, %q_bias: tensor<16xbf16>, %head: tensor<16x16xbf16>) -> (tensor<3xf32>, tensor<3xi32>, tensor<3x16xf32>, tensor<3x16xbf16>) {
    %0 = "stablehlo.gather"(%model_embed_tokens_weight, %tokens) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xbf16>, tensor<3xi32>) -> tensor<3x8xbf16>
    %1 = stablehlo.dot_general %0, %q_weight, contracting_dims = [1] x [1] : (tensor<3x8xbf16>, tensor<16x8xbf16>) -> tensor<3x16xf32>
    %2 = stablehlo.convert %q_bias : (tensor<16xbf16>) -> tensor<16xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<16xf32>) -> tensor<3x16xf32>
    %4 = stablehlo.add %1, %3 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %5 = stablehlo.convert %4 : (tensor<3x16xf32>) -> tensor<3x16xbf16>
    %6 = stablehlo.convert %5 : (tensor<3x16xbf16>) -> tensor<3x16xf32>
    %7 = stablehlo.convert %head : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %8 = stablehlo.dot_general %6, %7, contracting_dims = [1] x [1] : (tensor<3x16xf32>, tensor<16x16xf32>) -> tensor<3x16xf32>
    %9 = stablehlo.convert %head : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %10 = stablehlo.dot_general %6, %9, contracting_dims = [1] x [1] : (tensor<3x16xf32>, tensor<16x16xf32>) -> tensor<3x16xf32>
    %11 = stablehlo.iota dim = 1 : tensor<3x16xi32>
    %12 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %13 = stablehlo.constant dense<2147483647> : tensor<i32>
    %14:2 = stablehlo.reduce(%8 init: %12), (%11 init: %13) across dimensions = [1] : (tensor<3x16xf32>, tensor<3x16xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)
    reducer(%15: tensor<f32>, %16: tensor<f32>) (%17: tensor<i32>, %18: tensor<i32>) {
      %19 = stablehlo.compare GT, %15, %16, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %20 = stablehlo.compare EQ, %15, %16, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %21 = stablehlo.compare LT, %17, %18, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %22 = stablehlo.compare NE, %15, %15, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %23 = stablehlo.compare NE, %16, %16, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %24 = stablehlo.and %22, %23 : tensor<i1>
      %25 = stablehlo.xor %23, %24 : tensor<i1>
      %26 = stablehlo.or %19, %25 : tensor<i1>
      %27 = stablehlo.or %20, %24 : tensor<i1>
      %28 = stablehlo.and %27, %21 : tensor<i1>
      %29 = stablehlo.or %26, %28 : tensor<i1>
      %30 = stablehlo.select %29, %15, %16 : tensor<i1>, tensor<f32>
      %31 = stablehlo.select %29, %17, %18 : tensor<i1>, tensor<i32>
      stablehlo.return %30, %31 : tensor<f32>, tensor<i32>
    }
    %32 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %33 = stablehlo.reduce(%10 init: %32) applies stablehlo.maximum across dimensions = [1] : (tensor<3x16xf32>, tensor<f32>) -> tensor<3xf32>
    %34 = stablehlo.broadcast_in_dim %33, dims = [0] : (tensor<3xf32>) -> tensor<3x16xf32>
    %35 = stablehlo.subtract %10, %34 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %36 = stablehlo.exponential %35 : (tensor<3x16xf32>) -> tensor<3x16xf32>
    %37 = stablehlo.constant dense<0.0> : tensor<f32>
    %38 = stablehlo.reduce(%36 init: %37) applies stablehlo.add across dimensions = [1] : (tensor<3x16xf32>, tensor<f32>) -> tensor<3xf32>
    %39 = stablehlo.log %38 : (tensor<3xf32>) -> tensor<3xf32>
    %40 = stablehlo.add %39, %33 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %41 = stablehlo.broadcast_in_dim %40, dims = [0] : (tensor<3xf32>) -> tensor<3x16xf32>
    %42 = stablehlo.subtract %10, %41 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %43 = stablehlo.convert %5 : (tensor<3x16xbf16>) -> tensor<3x16xf32>
    %44 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %45 = stablehlo.reduce(%43 init: %44) applies stablehlo.maximum across dimensions = [1] : (tensor<3x16xf32>, tensor<f32>) -> tensor<3xf32>
    %46 = stablehlo.broadcast_in_dim %45, dims = [0] : (tensor<3xf32>) -> tensor<3x16xf32>
    %47 = stablehlo.subtract %43, %46 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %48 = stablehlo.exponential %47 : (tensor<3x16xf32>) -> tensor<3x16xf32>
    %49 = stablehlo.constant dense<0.0> : tensor<f32>
    %50 = stablehlo.reduce(%48 init: %49) applies stablehlo.add across dimensions = [1] : (tensor<3x16xf32>, tensor<f32>) -> tensor<3xf32>
    %51 = stablehlo.broadcast_in_dim %50, dims = [0] : (tensor<3xf32>) -> tensor<3x16xf32>
    %52 = stablehlo.divide %48, %51 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %53 = stablehlo.convert %52 : (tensor<3x16xf32>) -> tensor<3x16xbf16>
    return %14#0, %14#1, %42, %53 : tensor<3xf32>, tensor<3xi32>, tensor<3x16xf32>, tensor<3x16xbf16>
  }
}
