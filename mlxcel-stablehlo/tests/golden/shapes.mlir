module @shapes {
  func.func public @main(%x: tensor<2x3xf32>) -> (tensor<6xf32>, tensor<2x4x3xf32>, tensor<3x4x2xf32>, tensor<2x3xf32>, tensor<3x2xf32>, tensor<2x3xf16>, tensor<2x3xi1>, tensor<2x3x4xui8>, tensor<2x3xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x6xf32>, tensor<3x6xf32>) {
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = stablehlo.bitcast_convert %x : (tensor<2x3xf32>) -> tensor<2x3x4xui8>
    %2 = stablehlo.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
    %3 = stablehlo.broadcast_in_dim %x, dims = [0, 2] : (tensor<2x3xf32>) -> tensor<2x4x3xf32>
    %4 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 2] : (tensor<3x2xf32>) -> tensor<3x4x2xf32>
    %6 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %7 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %8 = stablehlo.convert %x : (tensor<2x3xf32>) -> tensor<2x3xf16>
    %9 = stablehlo.convert %x : (tensor<2x3xf32>) -> tensor<2x3xi1>
    %10 = stablehlo.bitcast_convert %1 : (tensor<2x3x4xui8>) -> tensor<2x3xf32>
    %11 = stablehlo.slice %x [0:2, 1:3] : (tensor<2x3xf32>) -> tensor<2x2xf32>
    %12 = stablehlo.slice %x [0:2, 0:3:2] : (tensor<2x3xf32>) -> tensor<2x2xf32>
    %13 = stablehlo.concatenate %x, %x, dim = 1 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x6xf32>
    %14 = stablehlo.pad %x, %0, low = [1, -1], high = [0, 2], interior = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3x6xf32>
    return %2, %3, %5, %6, %7, %8, %9, %1, %10, %11, %12, %13, %14 : tensor<6xf32>, tensor<2x4x3xf32>, tensor<3x4x2xf32>, tensor<2x3xf32>, tensor<3x2xf32>, tensor<2x3xf16>, tensor<2x3xi1>, tensor<2x3x4xui8>, tensor<2x3xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x6xf32>, tensor<3x6xf32>
  }
}
