module @"odd name" {
  func.func public @"a function"(%model_layers_0_w: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %model_layers_0_w_0: tensor<2xf32> {tf.aliasing_output = 1 : i32}, %arg7: tensor<2xf32>, %arg: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = stablehlo.add %model_layers_0_w, %model_layers_0_w_0 : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %1:2 = stablehlo.composite "odd.na$me.7" %0, %arg7, %arg {composite_attributes = {"an \22attribute\22 \C3\A9" = 0x7F800000 : f32}, decomposition = @odd.na$me.7.0} : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return %1#0, %1#1 : tensor<2xf32>, tensor<2xf32>
  }
  func.func public @nothing() {
    return
  }
  func.func private @odd.na$me.7.0(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>, %arg2: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = stablehlo.add %arg1, %arg2 : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %0, %arg0 : tensor<2xf32>, tensor<2xf32>
  }
}
