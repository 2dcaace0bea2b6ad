module @regions {
  func.func public @main(%x: tensor<2x3xf32>, %count: tensor<i32>) -> (tensor<i32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>) {
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
    %8 = stablehlo.iota dim = 1 : tensor<2x3xi32>
    %9:2 = "stablehlo.sort"(%x, %8) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%10: tensor<f32>, %11: tensor<f32>, %12: tensor<i32>, %13: tensor<i32>):
      %14 = stablehlo.compare GT, %10, %11, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %14 : tensor<i1>
    }) : (tensor<2x3xf32>, tensor<2x3xi32>) -> (tensor<2x3xf32>, tensor<2x3xi32>)
    return %1#0, %1#1, %9#0, %9#1 : tensor<i32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>
  }
}
