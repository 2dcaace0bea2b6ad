module @helpers {
  func.func public @main(%model_embed_tokens_weight: tensor<16x8xbf16>, %tokens: tensor<3xi32>, %norm_weight: tensor<8xbf16>, %q_weight: tensor<16x8xbf16>, %q_bias: tensor<16xbf16>, %angles: tensor<3x1xf32>, %kv: tensor<2x5x4xbf16>, %mask: tensor<3x5xi1>, %head: tensor<16x16xbf16>) -> (tensor<3xf32>, tensor<3xi32>, tensor<3x16xf32>, tensor<3x16xbf16>) {
    %0 = "stablehlo.gather"(%model_embed_tokens_weight, %tokens) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xbf16>, tensor<3xi32>) -> tensor<3x8xbf16>
    %1 = stablehlo.composite "mlxcel.rms_norm" %0, %norm_weight {composite_attributes = {eps = 1.0e-5 : f32}, decomposition = @mlxcel.rms_norm.0} : (tensor<3x8xbf16>, tensor<8xbf16>) -> tensor<3x8xbf16>
    %2 = stablehlo.composite "mlxcel.linear" %1, %q_weight, %q_bias {decomposition = @mlxcel.linear.0} : (tensor<3x8xbf16>, tensor<16x8xbf16>, tensor<16xbf16>) -> tensor<3x16xbf16>
    %3 = stablehlo.reshape %2 : (tensor<3x16xbf16>) -> tensor<3x4x4xbf16>
    %4 = stablehlo.cosine %angles : (tensor<3x1xf32>) -> tensor<3x1xf32>
    %5 = stablehlo.sine %angles : (tensor<3x1xf32>) -> tensor<3x1xf32>
    %6 = stablehlo.broadcast_in_dim %4, dims = [0, 2] : (tensor<3x1xf32>) -> tensor<3x4x1xf32>
    %7 = stablehlo.broadcast_in_dim %5, dims = [0, 2] : (tensor<3x1xf32>) -> tensor<3x4x1xf32>
    %8 = stablehlo.slice %3 [0:3, 0:4, 0:1] : (tensor<3x4x4xbf16>) -> tensor<3x4x1xbf16>
    %9 = stablehlo.slice %3 [0:3, 0:4, 1:2] : (tensor<3x4x4xbf16>) -> tensor<3x4x1xbf16>
    %10 = stablehlo.convert %8 : (tensor<3x4x1xbf16>) -> tensor<3x4x1xf32>
    %11 = stablehlo.convert %9 : (tensor<3x4x1xbf16>) -> tensor<3x4x1xf32>
    %12 = stablehlo.multiply %10, %6 : (tensor<3x4x1xf32>, tensor<3x4x1xf32>) -> tensor<3x4x1xf32>
    %13 = stablehlo.multiply %11, %7 : (tensor<3x4x1xf32>, tensor<3x4x1xf32>) -> tensor<3x4x1xf32>
    %14 = stablehlo.multiply %11, %6 : (tensor<3x4x1xf32>, tensor<3x4x1xf32>) -> tensor<3x4x1xf32>
    %15 = stablehlo.multiply %10, %7 : (tensor<3x4x1xf32>, tensor<3x4x1xf32>) -> tensor<3x4x1xf32>
    %16 = stablehlo.subtract %12, %13 : (tensor<3x4x1xf32>, tensor<3x4x1xf32>) -> tensor<3x4x1xf32>
    %17 = stablehlo.add %14, %15 : (tensor<3x4x1xf32>, tensor<3x4x1xf32>) -> tensor<3x4x1xf32>
    %18 = stablehlo.convert %16 : (tensor<3x4x1xf32>) -> tensor<3x4x1xbf16>
    %19 = stablehlo.convert %17 : (tensor<3x4x1xf32>) -> tensor<3x4x1xbf16>
    %20 = stablehlo.slice %3 [0:3, 0:4, 2:4] : (tensor<3x4x4xbf16>) -> tensor<3x4x2xbf16>
    %21 = stablehlo.concatenate %18, %19, %20, dim = 2 : (tensor<3x4x1xbf16>, tensor<3x4x1xbf16>, tensor<3x4x2xbf16>) -> tensor<3x4x4xbf16>
    %22 = stablehlo.transpose %21, dims = [1, 0, 2] : (tensor<3x4x4xbf16>) -> tensor<4x3x4xbf16>
    %23 = stablehlo.composite "mlxcel.attention" %22, %kv, %kv, %mask {composite_attributes = {scale = 0.5 : f32}, decomposition = @mlxcel.attention.0} : (tensor<4x3x4xbf16>, tensor<2x5x4xbf16>, tensor<2x5x4xbf16>, tensor<3x5xi1>) -> tensor<3x16xbf16>
    %24 = stablehlo.convert %23 : (tensor<3x16xbf16>) -> tensor<3x16xf32>
    %25 = stablehlo.composite "mlxcel.linear" %24, %head {decomposition = @mlxcel.linear.1} : (tensor<3x16xf32>, tensor<16x16xbf16>) -> tensor<3x16xf32>
    %26 = stablehlo.composite "mlxcel.linear" %24, %head {decomposition = @mlxcel.linear.1} : (tensor<3x16xf32>, tensor<16x16xbf16>) -> tensor<3x16xf32>
    %27 = stablehlo.iota dim = 1 : tensor<3x16xi32>
    %28 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %29 = stablehlo.constant dense<2147483647> : tensor<i32>
    %30:2 = stablehlo.reduce(%25 init: %28), (%27 init: %29) across dimensions = [1] : (tensor<3x16xf32>, tensor<3x16xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)
    reducer(%31: tensor<f32>, %32: tensor<f32>) (%33: tensor<i32>, %34: tensor<i32>) {
      %35 = stablehlo.compare GT, %31, %32, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %36 = stablehlo.compare EQ, %31, %32, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %37 = stablehlo.compare LT, %33, %34, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %38 = stablehlo.compare NE, %31, %31, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %39 = stablehlo.compare NE, %32, %32, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %40 = stablehlo.and %38, %39 : tensor<i1>
      %41 = stablehlo.xor %39, %40 : tensor<i1>
      %42 = stablehlo.or %35, %41 : tensor<i1>
      %43 = stablehlo.or %36, %40 : tensor<i1>
      %44 = stablehlo.and %43, %37 : tensor<i1>
      %45 = stablehlo.or %42, %44 : tensor<i1>
      %46 = stablehlo.select %45, %31, %32 : tensor<i1>, tensor<f32>
      %47 = stablehlo.select %45, %33, %34 : tensor<i1>, tensor<i32>
      stablehlo.return %46, %47 : tensor<f32>, tensor<i32>
    }
    %48 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %49 = stablehlo.reduce(%26 init: %48) applies stablehlo.maximum across dimensions = [1] : (tensor<3x16xf32>, tensor<f32>) -> tensor<3xf32>
    %50 = stablehlo.broadcast_in_dim %49, dims = [0] : (tensor<3xf32>) -> tensor<3x16xf32>
    %51 = stablehlo.subtract %26, %50 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %52 = stablehlo.exponential %51 : (tensor<3x16xf32>) -> tensor<3x16xf32>
    %53 = stablehlo.constant dense<0.0> : tensor<f32>
    %54 = stablehlo.reduce(%52 init: %53) applies stablehlo.add across dimensions = [1] : (tensor<3x16xf32>, tensor<f32>) -> tensor<3xf32>
    %55 = stablehlo.log %54 : (tensor<3xf32>) -> tensor<3xf32>
    %56 = stablehlo.add %55, %49 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %57 = stablehlo.broadcast_in_dim %56, dims = [0] : (tensor<3xf32>) -> tensor<3x16xf32>
    %58 = stablehlo.subtract %26, %57 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %59 = stablehlo.convert %23 : (tensor<3x16xbf16>) -> tensor<3x16xf32>
    %60 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %61 = stablehlo.reduce(%59 init: %60) applies stablehlo.maximum across dimensions = [1] : (tensor<3x16xf32>, tensor<f32>) -> tensor<3xf32>
    %62 = stablehlo.broadcast_in_dim %61, dims = [0] : (tensor<3xf32>) -> tensor<3x16xf32>
    %63 = stablehlo.subtract %59, %62 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %64 = stablehlo.exponential %63 : (tensor<3x16xf32>) -> tensor<3x16xf32>
    %65 = stablehlo.constant dense<0.0> : tensor<f32>
    %66 = stablehlo.reduce(%64 init: %65) applies stablehlo.add across dimensions = [1] : (tensor<3x16xf32>, tensor<f32>) -> tensor<3xf32>
    %67 = stablehlo.broadcast_in_dim %66, dims = [0] : (tensor<3xf32>) -> tensor<3x16xf32>
    %68 = stablehlo.divide %64, %67 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %69 = stablehlo.convert %68 : (tensor<3x16xf32>) -> tensor<3x16xbf16>
    return %30#0, %30#1, %58, %69 : tensor<3xf32>, tensor<3xi32>, tensor<3x16xf32>, tensor<3x16xbf16>
  }
  func.func private @mlxcel.rms_norm.0(%arg0: tensor<3x8xbf16>, %arg1: tensor<8xbf16>) -> tensor<3x8xbf16> {
    %0 = stablehlo.convert %arg0 : (tensor<3x8xbf16>) -> tensor<3x8xf32>
    %1 = stablehlo.multiply %0, %0 : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
    %2 = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [1] : (tensor<3x8xf32>, tensor<f32>) -> tensor<3xf32>
    %4 = stablehlo.constant dense<8.0> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %6 = stablehlo.divide %3, %5 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %7 = stablehlo.constant dense<1.0e-5> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %9 = stablehlo.add %6, %8 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %10 = stablehlo.rsqrt %9 : (tensor<3xf32>) -> tensor<3xf32>
    %11 = stablehlo.convert %arg0 : (tensor<3x8xbf16>) -> tensor<3x8xf32>
    %12 = stablehlo.broadcast_in_dim %10, dims = [0] : (tensor<3xf32>) -> tensor<3x8xf32>
    %13 = stablehlo.multiply %11, %12 : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
    %14 = stablehlo.convert %13 : (tensor<3x8xf32>) -> tensor<3x8xbf16>
    %15 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<8xbf16>) -> tensor<3x8xbf16>
    %16 = stablehlo.multiply %15, %14 : (tensor<3x8xbf16>, tensor<3x8xbf16>) -> tensor<3x8xbf16>
    return %16 : tensor<3x8xbf16>
  }
  func.func private @mlxcel.linear.0(%arg0: tensor<3x8xbf16>, %arg1: tensor<16x8xbf16>, %arg2: tensor<16xbf16>) -> tensor<3x16xbf16> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1] : (tensor<3x8xbf16>, tensor<16x8xbf16>) -> tensor<3x16xf32>
    %1 = stablehlo.convert %arg2 : (tensor<16xbf16>) -> tensor<16xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [1] : (tensor<16xf32>) -> tensor<3x16xf32>
    %3 = stablehlo.add %0, %2 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    %4 = stablehlo.convert %3 : (tensor<3x16xf32>) -> tensor<3x16xbf16>
    return %4 : tensor<3x16xbf16>
  }
  func.func private @mlxcel.attention.0(%arg0: tensor<4x3x4xbf16>, %arg1: tensor<2x5x4xbf16>, %arg2: tensor<2x5x4xbf16>, %arg3: tensor<3x5xi1>) -> tensor<3x16xbf16> {
    %0 = stablehlo.convert %arg0 : (tensor<4x3x4xbf16>) -> tensor<4x3x4xf32>
    %1 = stablehlo.convert %arg1 : (tensor<2x5x4xbf16>) -> tensor<2x5x4xf32>
    %2 = stablehlo.convert %arg2 : (tensor<2x5x4xbf16>) -> tensor<2x5x4xf32>
    %3 = stablehlo.reshape %0 : (tensor<4x3x4xf32>) -> tensor<2x2x3x4xf32>
    %4 = stablehlo.dot_general %3, %1, batching_dims = [0] x [0], contracting_dims = [3] x [2] : (tensor<2x2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x2x3x5xf32>
    %5 = stablehlo.constant dense<0.5> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f32>) -> tensor<2x2x3x5xf32>
    %7 = stablehlo.multiply %4, %6 : (tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>) -> tensor<2x2x3x5xf32>
    %8 = stablehlo.constant dense<-3.4028235e38> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<2x2x3x5xf32>
    %10 = stablehlo.broadcast_in_dim %arg3, dims = [2, 3] : (tensor<3x5xi1>) -> tensor<2x2x3x5xi1>
    %11 = stablehlo.select %10, %7, %9 : (tensor<2x2x3x5xi1>, tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>) -> tensor<2x2x3x5xf32>
    %12 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %13 = stablehlo.reduce(%11 init: %12) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x3x5xf32>, tensor<f32>) -> tensor<2x2x3xf32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0, 1, 2] : (tensor<2x2x3xf32>) -> tensor<2x2x3x5xf32>
    %15 = stablehlo.subtract %11, %14 : (tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>) -> tensor<2x2x3x5xf32>
    %16 = stablehlo.exponential %15 : (tensor<2x2x3x5xf32>) -> tensor<2x2x3x5xf32>
    %17 = stablehlo.constant dense<0.0> : tensor<f32>
    %18 = stablehlo.reduce(%16 init: %17) applies stablehlo.add across dimensions = [3] : (tensor<2x2x3x5xf32>, tensor<f32>) -> tensor<2x2x3xf32>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2] : (tensor<2x2x3xf32>) -> tensor<2x2x3x5xf32>
    %20 = stablehlo.divide %16, %19 : (tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>) -> tensor<2x2x3x5xf32>
    %21 = stablehlo.dot_general %20, %2, batching_dims = [0] x [0], contracting_dims = [3] x [1] : (tensor<2x2x3x5xf32>, tensor<2x5x4xf32>) -> tensor<2x2x3x4xf32>
    %22 = stablehlo.transpose %21, dims = [2, 0, 1, 3] : (tensor<2x2x3x4xf32>) -> tensor<3x2x2x4xf32>
    %23 = stablehlo.reshape %22 : (tensor<3x2x2x4xf32>) -> tensor<3x16xf32>
    %24 = stablehlo.convert %23 : (tensor<3x16xf32>) -> tensor<3x16xbf16>
    return %24 : tensor<3x16xbf16>
  }
  func.func private @mlxcel.linear.1(%arg0: tensor<3x16xf32>, %arg1: tensor<16x16xbf16>) -> tensor<3x16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %1 = stablehlo.dot_general %arg0, %0, contracting_dims = [1] x [1] : (tensor<3x16xf32>, tensor<16x16xf32>) -> tensor<3x16xf32>
    return %1 : tensor<3x16xf32>
  }
}
