module @packed {
  func.func public @main(%tokens: tensor<3xi32>, %embed_tokens_weight: tensor<16x64xbf16>, %head_weight: tensor<16x8xui32>, %head_scales: tensor<16x2xbf16>, %head_biases: tensor<16x2xbf16>, %head_bias: tensor<16xf32>) -> tensor<3x16xf32> {
    %0 = stablehlo.composite "mlxcel.embedding" %embed_tokens_weight, %tokens {decomposition = @mlxcel.embedding.0} : (tensor<16x64xbf16>, tensor<3xi32>) -> tensor<3x64xf32>
    %1 = stablehlo.composite "mlxcel.quantized_embedding" %head_weight, %head_scales, %head_biases, %tokens {composite_attributes = {bits = 4 : i64, group_size = 32 : i64}, decomposition = @mlxcel.quantized_embedding.0} : (tensor<16x8xui32>, tensor<16x2xbf16>, tensor<16x2xbf16>, tensor<3xi32>) -> tensor<3x64xf32>
    %2 = stablehlo.add %0, %1 : (tensor<3x64xf32>, tensor<3x64xf32>) -> tensor<3x64xf32>
    %3 = stablehlo.composite "mlxcel.quantized_linear" %2, %head_weight, %head_scales, %head_biases, %head_bias {composite_attributes = {bits = 4 : i64, group_size = 32 : i64}, decomposition = @mlxcel.quantized_linear.0} : (tensor<3x64xf32>, tensor<16x8xui32>, tensor<16x2xbf16>, tensor<16x2xbf16>, tensor<16xf32>) -> tensor<3x16xf32>
    return %3 : tensor<3x16xf32>
  }
  func.func private @mlxcel.embedding.0(%arg0: tensor<16x64xbf16>, %arg1: tensor<3xi32>) -> tensor<3x64xf32> {
    %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<16x64xbf16>, tensor<3xi32>) -> tensor<3x64xbf16>
    %1 = stablehlo.convert %0 : (tensor<3x64xbf16>) -> tensor<3x64xf32>
    return %1 : tensor<3x64xf32>
  }
  func.func private @mlxcel.quantized_embedding.0(%arg0: tensor<16x8xui32>, %arg1: tensor<16x2xbf16>, %arg2: tensor<16x2xbf16>, %arg3: tensor<3xi32>) -> tensor<3x64xf32> {
    %0 = "stablehlo.gather"(%arg0, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xui32>, tensor<3xi32>) -> tensor<3x8xui32>
    %1 = "stablehlo.gather"(%arg1, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 2>}> : (tensor<16x2xbf16>, tensor<3xi32>) -> tensor<3x2xbf16>
    %2 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 2>}> : (tensor<16x2xbf16>, tensor<3xi32>) -> tensor<3x2xbf16>
    %3 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<3x8xui32>) -> tensor<3x8x8xui32>
    %4 = stablehlo.iota dim = 2 : tensor<3x8x8xui32>
    %5 = stablehlo.constant dense<4> : tensor<ui32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<ui32>) -> tensor<3x8x8xui32>
    %7 = stablehlo.multiply %4, %6 : (tensor<3x8x8xui32>, tensor<3x8x8xui32>) -> tensor<3x8x8xui32>
    %8 = stablehlo.shift_right_logical %3, %7 : (tensor<3x8x8xui32>, tensor<3x8x8xui32>) -> tensor<3x8x8xui32>
    %9 = stablehlo.constant dense<15> : tensor<ui32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<ui32>) -> tensor<3x8x8xui32>
    %11 = stablehlo.and %8, %10 : (tensor<3x8x8xui32>, tensor<3x8x8xui32>) -> tensor<3x8x8xui32>
    %12 = stablehlo.convert %11 : (tensor<3x8x8xui32>) -> tensor<3x8x8xf32>
    %13 = stablehlo.reshape %12 : (tensor<3x8x8xf32>) -> tensor<3x2x32xf32>
    %14 = stablehlo.convert %1 : (tensor<3x2xbf16>) -> tensor<3x2xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1] : (tensor<3x2xf32>) -> tensor<3x2x32xf32>
    %16 = stablehlo.convert %2 : (tensor<3x2xbf16>) -> tensor<3x2xf32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1] : (tensor<3x2xf32>) -> tensor<3x2x32xf32>
    %18 = stablehlo.multiply %13, %15 : (tensor<3x2x32xf32>, tensor<3x2x32xf32>) -> tensor<3x2x32xf32>
    %19 = stablehlo.add %18, %17 : (tensor<3x2x32xf32>, tensor<3x2x32xf32>) -> tensor<3x2x32xf32>
    %20 = stablehlo.reshape %19 : (tensor<3x2x32xf32>) -> tensor<3x64xf32>
    return %20 : tensor<3x64xf32>
  }
  func.func private @mlxcel.quantized_linear.0(%arg0: tensor<3x64xf32>, %arg1: tensor<16x8xui32>, %arg2: tensor<16x2xbf16>, %arg3: tensor<16x2xbf16>, %arg4: tensor<16xf32>) -> tensor<3x16xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] : (tensor<16x8xui32>) -> tensor<16x8x8xui32>
    %1 = stablehlo.iota dim = 2 : tensor<16x8x8xui32>
    %2 = stablehlo.constant dense<4> : tensor<ui32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<ui32>) -> tensor<16x8x8xui32>
    %4 = stablehlo.multiply %1, %3 : (tensor<16x8x8xui32>, tensor<16x8x8xui32>) -> tensor<16x8x8xui32>
    %5 = stablehlo.shift_right_logical %0, %4 : (tensor<16x8x8xui32>, tensor<16x8x8xui32>) -> tensor<16x8x8xui32>
    %6 = stablehlo.constant dense<15> : tensor<ui32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<ui32>) -> tensor<16x8x8xui32>
    %8 = stablehlo.and %5, %7 : (tensor<16x8x8xui32>, tensor<16x8x8xui32>) -> tensor<16x8x8xui32>
    %9 = stablehlo.convert %8 : (tensor<16x8x8xui32>) -> tensor<16x8x8xf32>
    %10 = stablehlo.reshape %9 : (tensor<16x8x8xf32>) -> tensor<16x2x32xf32>
    %11 = stablehlo.convert %arg2 : (tensor<16x2xbf16>) -> tensor<16x2xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1] : (tensor<16x2xf32>) -> tensor<16x2x32xf32>
    %13 = stablehlo.convert %arg3 : (tensor<16x2xbf16>) -> tensor<16x2xf32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0, 1] : (tensor<16x2xf32>) -> tensor<16x2x32xf32>
    %15 = stablehlo.multiply %10, %12 : (tensor<16x2x32xf32>, tensor<16x2x32xf32>) -> tensor<16x2x32xf32>
    %16 = stablehlo.add %15, %14 : (tensor<16x2x32xf32>, tensor<16x2x32xf32>) -> tensor<16x2x32xf32>
    %17 = stablehlo.reshape %16 : (tensor<16x2x32xf32>) -> tensor<16x64xf32>
    %18 = stablehlo.dot_general %arg0, %17, contracting_dims = [1] x [1] : (tensor<3x64xf32>, tensor<16x64xf32>) -> tensor<3x16xf32>
    %19 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<16xf32>) -> tensor<3x16xf32>
    %20 = stablehlo.add %18, %19 : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
    return %20 : tensor<3x16xf32>
  }
}
