"""meTile for MLX: kernels over tiles, with checked thread ownership, as lazy MLX arrays."""
