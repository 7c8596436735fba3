namespace ${name}_detail {

$shape

template <int VECTOR>
__global__ void __launch_bounds__(Shape::THREADS, $blocks)
kernel(const float* __restrict__ upstream, const float* __restrict__ input, float* __restrict__ out, weight_gradient::Sizes size) {
  extern __shared__ __align__(128) float shared[];
  weight_gradient::run<Shape, VECTOR>(upstream, input, out, size, shared);
}
$merge
}  // namespace ${name}_detail

$launcher
