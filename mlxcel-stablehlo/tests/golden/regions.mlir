module @regions {
  func.func public @main(%x: tensor<2x3xf32>, %count: tensor<i32>) -> (tensor<i32>, tensor<2x3xf32>) {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.while(%2 = %0, %3 = %x) : tensor<i32>, tensor<2x3xf32>
    cond {
      %4 = stablehlo.compare LT, %2, %count, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %5 = stablehlo.constant dense<1> : tensor<i32>
      %6 = stablehlo.add %2, %5 : (tensor<i32>, tensor<i32>) -> tensor<i32>
      %7 = stablehlo.multiply %3, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      stablehlo.return %6, %7 : tensor<i32>, tensor<2x3xf32>
    }
    return %1#0, %1#1 : tensor<i32>, tensor<2x3xf32>
  }
}
