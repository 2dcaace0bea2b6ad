// What stands between the products: softmax, norms, activations, rotation.
namespace mlxcel::kernels::MLXCEL_ISA {

/// e to the power of x, within 2 units in the last place; x below -87.3 gives what -87.3 gives, x above 88.3 what
/// 88.3 does. Range reduction and polynomial of Cephes' expf (Moshier).
MLXCEL_INLINE Vec exponential(Vec x) {
  const Vec low = splat(-87.33654f), high = splat(88.3762f);
  // Only what is a number may select the power of two; what is not stays in the rest.
  const Vec number = min(max(x, low), high);
  const Vec any = min(high, max(low, x));
  const Vec power = round(mul(number, splat(1.44269504088896341f)));
  Vec rest = fma(power, splat(-0.693359375f), any);
  rest = fma(power, splat(2.12194440e-4f), rest);
  Vec sum = splat(1.9875691500e-4f);
  sum = fma(sum, rest, splat(1.3981999507e-3f));
  sum = fma(sum, rest, splat(8.3334519073e-3f));
  sum = fma(sum, rest, splat(4.1665795894e-2f));
  sum = fma(sum, rest, splat(1.6666665459e-1f));
  sum = fma(sum, rest, splat(5.0000001201e-1f));
  sum = add(fma(sum, mul(rest, rest), rest), splat(1.0f));
  return mul(sum, power_of_two(power));
}

/// The largest lane, or what is no number in the last lane that holds it.
MLXCEL_INLINE float largest_lane(Vec a) {
  float lanes[kWidth];
  store(lanes, a);
  float largest = lanes[0];
  for (std::size_t i = 1; i < kWidth; ++i) {
    largest = lanes[i] > largest ? lanes[i] : largest;
  }
  return largest;
}

void softmax(float* scores, std::size_t begin, std::size_t end, std::size_t width, SoftmaxRow& row) {
  row.correction = 1.0f;
  if (begin >= end) {
    std::memset(scores, 0, width * sizeof(float));
    return;
  }
  const float least = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < begin; ++i) {
    scores[i] = least;
  }
  for (std::size_t i = end; i < width; ++i) {
    scores[i] = least;
  }
  Vec largest = splat(row.maximum);
  for (std::size_t i = 0; i < width; i += kWidth) {
    largest = max(largest, load(scores + i));
  }
  const float maximum = largest_lane(largest);
  const Vec subtracted = splat(maximum);
  for (std::size_t i = 0; i < width; i += kWidth) {
    store(scores + i, exponential(sub(load(scores + i), subtracted)));
  }
  // The smallest power is not zero, and what is masked must be.
  for (std::size_t i = 0; i < begin; ++i) {
    scores[i] = 0.0f;
  }
  for (std::size_t i = end; i < width; ++i) {
    scores[i] = 0.0f;
  }
  Vec total = zero();
  for (std::size_t i = 0; i < width; i += kWidth) {
    total = add(total, load(scores + i));
  }
  if (row.maximum == least) {
    row.correction = 0.0f;
  } else if (row.maximum != maximum) {
    float lanes[kWidth];
    store(lanes, exponential(splat(row.maximum - maximum)));
    row.correction = lanes[0];
  }
  row.total = row.total * row.correction + sum(total);
  row.maximum = maximum;
}

void exponentials(const float* x, std::size_t count, float& maximum, float& total) {
  const float least = -std::numeric_limits<float>::infinity();
  Vec largest = splat(least);
  std::size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    largest = max(largest, load(x + i));
  }
  maximum = largest_lane(largest);
  for (; i < count; ++i) {
    maximum = x[i] > maximum ? x[i] : maximum;
  }
  total = 0.0f;
  if (maximum == least) {
    // Nothing, or nothing but negative infinities and what is no number.
    for (i = 0; i < count; ++i) {
      total += x[i] == least ? 0.0f : x[i];
    }
    return;
  }
  const Vec subtracted = splat(maximum);
  Vec sums = zero();
  i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    sums = add(sums, exponential(sub(load(x + i), subtracted)));
  }
  if (i < count) {
    float rest[kWidth];
    store(rest, splat(least));
    std::memcpy(rest, x + i, (count - i) * sizeof(float));
    sums = add(sums, exponential(sub(load(rest), subtracted)));
  }
  total = sum(sums);
}

void scale(const float* a, float factor, std::size_t count, float* to) {
  std::size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    store(to + i, mul(load(a + i), splat(factor)));
  }
  if (i < count) {
    store(to + i, mul(load(a + i, count - i), splat(factor)), count - i);
  }
}

template <class T>
void rms_norm(const float* x, const void* weight, float epsilon, std::size_t count, float* to) {
  const T* factors = static_cast<const T*>(weight);
  Vec squares = zero(), more = zero();
  std::size_t i = 0;
  for (; i + 2 * kWidth <= count; i += 2 * kWidth) {
    squares = fma(load(x + i), load(x + i), squares);
    more = fma(load(x + i + kWidth), load(x + i + kWidth), more);
  }
  float total = sum(add(squares, more));
  for (; i < count; ++i) {
    total += x[i] * x[i];
  }
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(count) + epsilon);
  const Vec scales = splat(scale);
  i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const Vec scaled = mul(load(x + i), scales);
    store(to + i, factors == nullptr ? scaled : mul(scaled, load(factors + i)));
  }
  for (; i < count; ++i) {
    to[i] = x[i] * scale * (factors == nullptr ? 1.0f : read<T>(factors, i));
  }
}

void silu_mul(const float* x, const float* y, std::size_t count, float* to) {
  const Vec one = splat(1.0f);
  std::size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const Vec gate = load(x + i);
    const Vec sigmoid = div(one, add(one, exponential(sub(zero(), gate))));
    store(to + i, mul(mul(gate, sigmoid), load(y + i)));
  }
  if (const std::size_t rest = count - i; rest > 0) {
    const Vec gate = load(x + i, rest);
    const Vec sigmoid = div(one, add(one, exponential(sub(zero(), gate))));
    store(to + i, mul(mul(gate, sigmoid), load(y + i, rest)), rest);
  }
}

void rotate_halves(const float* x, const float* cos, const float* sin, std::size_t half, float* to) {
  std::size_t i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const Vec low = load(x + i), high = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(to + i, sub(mul(low, c), mul(high, s)));
    store(to + half + i, add(mul(high, c), mul(low, s)));
  }
  for (; i < half; ++i) {
    const float low = x[i], high = x[half + i];
    to[i] = low * cos[i] - high * sin[i];
    to[half + i] = high * cos[i] + low * sin[i];
  }
}

}  // namespace mlxcel::kernels::MLXCEL_ISA
