module @constants {
  func.func public @main() -> (tensor<2x4xf32>, tensor<3xf16>, tensor<3xbf16>, tensor<2xi64>, tensor<2xui32>, tensor<2xi8>, tensor<2xui8>, tensor<2xi1>, tensor<3xi4>, tensor<3xui4>, tensor<17xi32>, tensor<2x2xui8>, tensor<0x2xf32>, tensor<f32>, tensor<i1>, tensor<2x3xbf16>, tensor<2x3xi32>) {
    %0 = stablehlo.constant dense<[[0.0, -0.0, 0.1, 1.0e-40], [3.4028235e38, 1.1754944e-38, 0x7F800000, 0x7FC00000]]> : tensor<2x4xf32>
    %1 = stablehlo.constant dense<[0.099975586, 0xFC00, 65504.0]> : tensor<3xf16>
    %2 = stablehlo.constant dense<[0.100097656, 0x7FC0, -3.3895314e38]> : tensor<3xbf16>
    %3 = stablehlo.constant dense<[-9223372036854775808, 9223372036854775807]> : tensor<2xi64>
    %4 = stablehlo.constant dense<[4294967295, 1]> : tensor<2xui32>
    %5 = stablehlo.constant dense<[-128, 127]> : tensor<2xi8>
    %6 = stablehlo.constant dense<[255, 0]> : tensor<2xui8>
    %7 = stablehlo.constant dense<[true, false]> : tensor<2xi1>
    %8 = stablehlo.constant dense<[1, -1, -8]> : tensor<3xi4>
    %9 = stablehlo.constant dense<[1, 15, 8]> : tensor<3xui4>
    %10 = stablehlo.constant dense<"0x000000000100000002000000030000000400000005000000060000000700000008000000090000000A0000000B0000000C0000000D0000000E0000000F00000010000000"> : tensor<17xi32>
    %11 = stablehlo.constant dense<7> : tensor<2x2xui8>
    %12 = stablehlo.constant dense<> : tensor<0x2xf32>
    %13 = stablehlo.constant dense<2.5> : tensor<f32>
    %14 = stablehlo.constant dense<true> : tensor<i1>
    %15 = stablehlo.constant dense<-1.5> : tensor<bf16>
    %16 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<bf16>) -> tensor<2x3xbf16>
    %17 = stablehlo.iota dim = 1 : tensor<2x3xi32>
    return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %16, %17 : tensor<2x4xf32>, tensor<3xf16>, tensor<3xbf16>, tensor<2xi64>, tensor<2xui32>, tensor<2xi8>, tensor<2xui8>, tensor<2xi1>, tensor<3xi4>, tensor<3xui4>, tensor<17xi32>, tensor<2x2xui8>, tensor<0x2xf32>, tensor<f32>, tensor<i1>, tensor<2x3xbf16>, tensor<2x3xi32>
  }
}
