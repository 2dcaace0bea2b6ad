module @elementwise {
  func.func public @main(%x: tensor<2x3xf32>, %i: tensor<2x3xi32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>) {
    %0 = stablehlo.abs %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.negate %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %2 = stablehlo.sign %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %3 = stablehlo.not %i : (tensor<2x3xi32>) -> tensor<2x3xi32>
    %4 = stablehlo.exponential %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %5 = stablehlo.exponential_minus_one %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %6 = stablehlo.log %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %7 = stablehlo.log_plus_one %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %8 = stablehlo.logistic %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %9 = stablehlo.tanh %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %10 = stablehlo.sine %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %11 = stablehlo.cosine %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %12 = stablehlo.sqrt %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %13 = stablehlo.rsqrt %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %14 = stablehlo.cbrt %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %15 = stablehlo.floor %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %16 = stablehlo.ceil %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %17 = stablehlo.round_nearest_even %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %18 = stablehlo.round_nearest_afz %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %19 = stablehlo.count_leading_zeros %i : (tensor<2x3xi32>) -> tensor<2x3xi32>
    %20 = stablehlo.popcnt %i : (tensor<2x3xi32>) -> tensor<2x3xi32>
    %21 = stablehlo.add %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %22 = stablehlo.subtract %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %23 = stablehlo.multiply %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %24 = stablehlo.divide %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %25 = stablehlo.maximum %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %26 = stablehlo.minimum %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %27 = stablehlo.power %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %28 = stablehlo.remainder %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %29 = stablehlo.atan2 %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %30 = stablehlo.and %i, %i : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x3xi32>
    %31 = stablehlo.or %i, %i : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x3xi32>
    %32 = stablehlo.xor %i, %i : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x3xi32>
    %33 = stablehlo.shift_left %i, %i : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x3xi32>
    %34 = stablehlo.shift_right_arithmetic %i, %i : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x3xi32>
    %35 = stablehlo.shift_right_logical %i, %i : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x3xi32>
    %36 = stablehlo.compare EQ, %x, %x, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %37 = stablehlo.compare NE, %x, %x, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %38 = stablehlo.compare LT, %x, %x, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %39 = stablehlo.compare LE, %x, %x, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %40 = stablehlo.compare GT, %x, %x, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %41 = stablehlo.compare GE, %x, %x, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %42 = stablehlo.convert %i : (tensor<2x3xi32>) -> tensor<2x3xui32>
    %43 = stablehlo.compare LT, %42, %42, UNSIGNED : (tensor<2x3xui32>, tensor<2x3xui32>) -> tensor<2x3xi1>
    %44 = stablehlo.constant dense<1.0> : tensor<f32>
    %45 = stablehlo.compare EQ, %43, %43, UNSIGNED : (tensor<2x3xi1>, tensor<2x3xi1>) -> tensor<2x3xi1>
    %46 = stablehlo.select %45, %x, %x : (tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %47 = stablehlo.clamp %44, %x, %44 : (tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
    %48 = stablehlo.clamp %x, %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %49 = stablehlo.constant dense<true> : tensor<i1>
    %50 = stablehlo.select %49, %i, %i : (tensor<i1>, tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x3xi32>
    return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %46, %47, %48, %50 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi32>
  }
}
