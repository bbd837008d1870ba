// Every swizzle of a vector as a property. A put with a repeated component does not compile.
#pragma once

#define METILE_SWIZZLE2(a, b, A, B, i, j)                                                \
  METILE_INLINE constexpr vec<T, 2> metile_get_##a##b() const {                          \
    return {metile_data[i], metile_data[j]};                                             \
  }                                                                                      \
  METILE_INLINE void metile_put_##a##b(vec<T, 2> v) {                                    \
    static_assert(i != j || sizeof(v) == 0, "a component is assigned twice");            \
    metile_data[i] = v.metile_data[0];                                                   \
    metile_data[j] = v.metile_data[1];                                                   \
  }                                                                                      \
  __declspec(property(get = metile_get_##a##b, put = metile_put_##a##b)) vec<T, 2> a##b; \
  __declspec(property(get = metile_get_##a##b, put = metile_put_##a##b)) vec<T, 2> A##B;

#define METILE_SWIZZLE3(a, b, c, A, B, C, i, j, k)                                            \
  METILE_INLINE constexpr vec<T, 3> metile_get_##a##b##c() const {                            \
    return {metile_data[i], metile_data[j], metile_data[k]};                                  \
  }                                                                                           \
  METILE_INLINE void metile_put_##a##b##c(vec<T, 3> v) {                                      \
    static_assert(                                                                            \
        (i != j && i != k && j != k) || sizeof(v) == 0, "a component is assigned twice");     \
    metile_data[i] = v.metile_data[0];                                                        \
    metile_data[j] = v.metile_data[1];                                                        \
    metile_data[k] = v.metile_data[2];                                                        \
  }                                                                                           \
  __declspec(property(get = metile_get_##a##b##c, put = metile_put_##a##b##c)) vec<T, 3> a##b##c; \
  __declspec(property(get = metile_get_##a##b##c, put = metile_put_##a##b##c)) vec<T, 3> A##B##C;

#define METILE_SWIZZLE4(a, b, c, d, A, B, C, D, i, j, k, l)                                       \
  METILE_INLINE constexpr vec<T, 4> metile_get_##a##b##c##d() const {                             \
    return {metile_data[i], metile_data[j], metile_data[k], metile_data[l]};                      \
  }                                                                                               \
  METILE_INLINE void metile_put_##a##b##c##d(vec<T, 4> v) {                                       \
    static_assert(                                                                                \
        (i != j && i != k && i != l && j != k && j != l && k != l) || sizeof(v) == 0,             \
        "a component is assigned twice");                                                         \
    metile_data[i] = v.metile_data[0];                                                            \
    metile_data[j] = v.metile_data[1];                                                            \
    metile_data[k] = v.metile_data[2];                                                            \
    metile_data[l] = v.metile_data[3];                                                            \
  }                                                                                               \
  __declspec(property(get = metile_get_##a##b##c##d, put = metile_put_##a##b##c##d))              \
  vec<T, 4> a##b##c##d;                                                                           \
  __declspec(property(get = metile_get_##a##b##c##d, put = metile_put_##a##b##c##d))              \
  vec<T, 4> A##B##C##D;

// The last component runs over the N letters; each level above fixes one more.
#define METILE_S2_2(p, P, i) METILE_SWIZZLE2(p, x, P, r, i, 0) METILE_SWIZZLE2(p, y, P, g, i, 1)
#define METILE_S2_3(p, P, i) METILE_S2_2(p, P, i) METILE_SWIZZLE2(p, z, P, b, i, 2)
#define METILE_S2_4(p, P, i) METILE_S2_3(p, P, i) METILE_SWIZZLE2(p, w, P, a, i, 3)
#define METILE_S3_2(p, q, P, Q, i, j) \
  METILE_SWIZZLE3(p, q, x, P, Q, r, i, j, 0) METILE_SWIZZLE3(p, q, y, P, Q, g, i, j, 1)
#define METILE_S3_3(p, q, P, Q, i, j) \
  METILE_S3_2(p, q, P, Q, i, j) METILE_SWIZZLE3(p, q, z, P, Q, b, i, j, 2)
#define METILE_S3_4(p, q, P, Q, i, j) \
  METILE_S3_3(p, q, P, Q, i, j) METILE_SWIZZLE3(p, q, w, P, Q, a, i, j, 3)
#define METILE_S4_2(p, q, s, P, Q, S, i, j, k)        \
  METILE_SWIZZLE4(p, q, s, x, P, Q, S, r, i, j, k, 0) \
  METILE_SWIZZLE4(p, q, s, y, P, Q, S, g, i, j, k, 1)
#define METILE_S4_3(p, q, s, P, Q, S, i, j, k) \
  METILE_S4_2(p, q, s, P, Q, S, i, j, k) METILE_SWIZZLE4(p, q, s, z, P, Q, S, b, i, j, k, 2)
#define METILE_S4_4(p, q, s, P, Q, S, i, j, k) \
  METILE_S4_3(p, q, s, P, Q, S, i, j, k) METILE_SWIZZLE4(p, q, s, w, P, Q, S, a, i, j, k, 3)

#define METILE_EACH1_2(M) M(x, r, 0) M(y, g, 1)
#define METILE_EACH1_3(M) METILE_EACH1_2(M) M(z, b, 2)
#define METILE_EACH1_4(M) METILE_EACH1_3(M) M(w, a, 3)
#define METILE_ROW2_2(M, p, P, i) M(p, x, P, r, i, 0) M(p, y, P, g, i, 1)
#define METILE_ROW2_3(M, p, P, i) METILE_ROW2_2(M, p, P, i) M(p, z, P, b, i, 2)
#define METILE_ROW2_4(M, p, P, i) METILE_ROW2_3(M, p, P, i) M(p, w, P, a, i, 3)
#define METILE_EACH2_2(M) METILE_ROW2_2(M, x, r, 0) METILE_ROW2_2(M, y, g, 1)
#define METILE_EACH2_3(M) \
  METILE_ROW2_3(M, x, r, 0) METILE_ROW2_3(M, y, g, 1) METILE_ROW2_3(M, z, b, 2)
#define METILE_EACH2_4(M)                             \
  METILE_ROW2_4(M, x, r, 0) METILE_ROW2_4(M, y, g, 1) \
  METILE_ROW2_4(M, z, b, 2) METILE_ROW2_4(M, w, a, 3)
#define METILE_FOUR_2(p, q, P, Q, i, j) \
  METILE_S4_2(p, q, x, P, Q, r, i, j, 0) METILE_S4_2(p, q, y, P, Q, g, i, j, 1)
#define METILE_FOUR_3(p, q, P, Q, i, j)                                         \
  METILE_S4_3(p, q, x, P, Q, r, i, j, 0) METILE_S4_3(p, q, y, P, Q, g, i, j, 1) \
  METILE_S4_3(p, q, z, P, Q, b, i, j, 2)
#define METILE_FOUR_4(p, q, P, Q, i, j)                                         \
  METILE_S4_4(p, q, x, P, Q, r, i, j, 0) METILE_S4_4(p, q, y, P, Q, g, i, j, 1) \
  METILE_S4_4(p, q, z, P, Q, b, i, j, 2) METILE_S4_4(p, q, w, P, Q, a, i, j, 3)

#define METILE_SWIZZLES(N)        \
  METILE_EACH1_##N(METILE_S2_##N) \
  METILE_EACH2_##N(METILE_S3_##N) \
  METILE_EACH2_##N(METILE_FOUR_##N)
