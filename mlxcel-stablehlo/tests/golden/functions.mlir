module @functions {
  func.func public @first(%x: tensor<4xf32>) {
    %0:2 = func.call @shared(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %1 = stablehlo.composite "sample.twice" %0#0 {composite_attributes = {times = 2 : i64, scale = 0.5 : f32, mode = "a \22b\22\0A", exact = true}, decomposition = @sample.twice.0} : (tensor<4xf32>) -> tensor<4xf32>
    %2:2 = stablehlo.custom_call @sample.kernel(%1) {has_side_effect = true, mhlo.backend_config = {times = 2 : i64, scale = 0.5 : f32, mode = "a \22b\22\0A", exact = true}} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<i32>)
    stablehlo.custom_call @sample.nothing() {has_side_effect = true} : () -> ()
    return
  }
  func.func public @second(%y: tensor<4xf32>) {
    %0:2 = func.call @shared(%y) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %1 = stablehlo.composite "sample.twice" %0#0 {composite_attributes = {times = 2 : i64, scale = 0.5 : f32, mode = "a \22b\22\0A", exact = true}, decomposition = @sample.twice.0} : (tensor<4xf32>) -> tensor<4xf32>
    %2:2 = stablehlo.custom_call @sample.kernel(%1) {has_side_effect = true, mhlo.backend_config = {times = 2 : i64, scale = 0.5 : f32, mode = "a \22b\22\0A", exact = true}} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<i32>)
    stablehlo.custom_call @sample.nothing() {has_side_effect = true} : () -> ()
    return
  }
  func.func private @shared(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %0 = stablehlo.negate %x : (tensor<4xf32>) -> tensor<4xf32>
    return %0, %x : tensor<4xf32>, tensor<4xf32>
  }
  func.func private @sample.twice.0(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
