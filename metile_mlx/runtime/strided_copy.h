// Row-major copies of arrays with any strides (SPEC X8, F10). MLX's own copy is not exported.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "thread_pool.h"

namespace metile {

// Copies the elements of `source`, in row-major order of its shape, to `target`.
class StridedCopy {
 public:
  // shape and strides in elements; itemsize 1, 2, 4 or 8 bytes.
  template <typename Shape, typename Strides>
  StridedCopy(
      const char* source,
      char* target,
      const Shape& shape,
      const Strides& strides,
      size_t itemsize)
      : source_(source), target_(target), itemsize_(itemsize) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      append(shape[axis], strides[axis]);
    }
    if (extents_.empty()) {
      append_axis(1, 1);
    }
    inner_ = extents_.back();
    inner_stride_ = strides_.back();
    extents_.pop_back();
    strides_.pop_back();
    for (const int64_t extent : extents_) {
      rows_ *= uint64_t(extent);
    }
  }

  void run() const {
    if (rows_ && inner_) {
      ThreadPool::shared().run(rows_, &StridedCopy::copy_rows, this);
    }
  }

 private:
  // Merges an axis into the one before it where their elements are evenly spaced.
  void append(int64_t extent, int64_t stride) {
    if (extent == 1) {
      return;
    }
    if (!extents_.empty() && strides_.back() == stride * extent) {
      extents_.back() *= extent;
      strides_.back() = stride;
      return;
    }
    append_axis(extent, stride);
  }

  void append_axis(int64_t extent, int64_t stride) {
    extents_.push_back(extent);
    strides_.push_back(stride);
  }

  static void copy_rows(const void* context, uint64_t begin, uint64_t end) {
    const auto& copy = *static_cast<const StridedCopy*>(context);
    switch (copy.itemsize_) {
      case 1:
        return copy.rows<uint8_t>(begin, end);
      case 2:
        return copy.rows<uint16_t>(begin, end);
      case 4:
        return copy.rows<uint32_t>(begin, end);
      default:
        return copy.rows<uint64_t>(begin, end);
    }
  }

  template <typename T>
  void rows(uint64_t begin, uint64_t end) const {
    const T* const base = reinterpret_cast<const T*>(source_);
    T* out = reinterpret_cast<T*>(target_) + begin * uint64_t(inner_);
    for (uint64_t row = begin; row < end; ++row, out += inner_) {
      const T* in = base + row_offset(row);
      if (inner_stride_ == 1) {
        std::memcpy(out, in, size_t(inner_) * sizeof(T));
        continue;
      }
      for (int64_t i = 0; i < inner_; ++i) {
        out[i] = in[i * inner_stride_];
      }
    }
  }

  int64_t row_offset(uint64_t row) const {
    int64_t offset = 0;
    for (size_t axis = extents_.size(); axis-- > 0;) {
      offset += int64_t(row % uint64_t(extents_[axis])) * strides_[axis];
      row /= uint64_t(extents_[axis]);
    }
    return offset;
  }

  const char* source_;
  char* target_;
  size_t itemsize_;
  std::vector<int64_t> extents_;
  std::vector<int64_t> strides_;
  uint64_t rows_ = 1;
  int64_t inner_ = 1;
  int64_t inner_stride_ = 1;
};

}  // namespace metile
