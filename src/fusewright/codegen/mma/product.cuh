namespace ${name}_detail {

$constants

template <int VECTOR, int SPLITS>
__global__ void __launch_bounds__(Tile::THREADS, 1)
kernel($parameters) {
  extern __shared__ __align__(128) float shared[];
  __shared__ int any_odd;
$sizes
$matrix
$setup
  auto epilogue = [&](const float (&sum)[Tile::FRAGMENTS][4], int row, int column) {
$finish
  };
$corner  product::multiply<Tile, MOVES, VECTOR, SPLITS>(input, $input_pitch, weight, $weight_pitch, rows, depth, columns, tile, shared, any_odd, epilogue$wanted);
}
$merge
}  // namespace ${name}_detail

$launcher
