module @indexing {
  func.func public @main(%x: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}, %tokens: tensor<5xi32>, %position: tensor<i32>, %pairs: tensor<3x2xi64>) -> (tensor<8x4xf32>, tensor<2x4xf32>, tensor<5x4xf32>, tensor<3x2xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_slice %x, %position, %0, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    %2 = stablehlo.dynamic_update_slice %x, %1, %0, %0 : (tensor<8x4xf32>, tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
    %3 = "stablehlo.gather"(%x, %tokens) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> : (tensor<8x4xf32>, tensor<5xi32>) -> tensor<5x4xf32>
    %4 = "stablehlo.gather"(%x, %pairs) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [1], start_index_map = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 2, 1>}> : (tensor<8x4xf32>, tensor<3x2xi64>) -> tensor<3x2xf32>
    %5 = stablehlo.reshape %tokens : (tensor<5xi32>) -> tensor<5x1xi32>
    %6 = "stablehlo.scatter"(%x, %5, %3) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = true}> ({
    ^bb0(%7: tensor<f32>, %8: tensor<f32>):
      stablehlo.return %8 : tensor<f32>
    }) : (tensor<8x4xf32>, tensor<5x1xi32>, tensor<5x4xf32>) -> tensor<8x4xf32>
    %9 = "stablehlo.scatter"(%x, %5, %3) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%10: tensor<f32>, %11: tensor<f32>):
      %12 = stablehlo.add %10, %11 : tensor<f32>
      stablehlo.return %12 : tensor<f32>
    }) : (tensor<8x4xf32>, tensor<5x1xi32>, tensor<5x4xf32>) -> tensor<8x4xf32>
    return %2, %1, %3, %4, %6, %9 : tensor<8x4xf32>, tensor<2x4xf32>, tensor<5x4xf32>, tensor<3x2xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  }
}
