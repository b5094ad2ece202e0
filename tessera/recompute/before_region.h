#pragma once

/// What a thread may do between the regions of a backward.
namespace tessera::recompute {

/// Told that a region is about to run again. Nothing of it is in memory then but what it keeps and
/// the gradients of its results, so a backward that is interrupted here holds least.
/// Threads: that of the backward.
class BeforeRegion {
 public:
  virtual ~BeforeRegion() = default;
  /// It may let other threads run meanwhile. The region looks afterwards whether its arguments are
  /// what they were; what this throws is the backward's error.
  virtual void region_comes() = 0;
};

/// While one lives on this thread, regions of its backwards tell `before`; nullptr: nobody.
class BeforeRegionScope {
 public:
  explicit BeforeRegionScope(BeforeRegion* before);
  ~BeforeRegionScope();
  BeforeRegionScope(const BeforeRegionScope&) = delete;
  BeforeRegionScope& operator=(const BeforeRegionScope&) = delete;

  /// That of this thread; nullptr where there is none.
  static BeforeRegion* current();

 private:
  BeforeRegion* previous_;
};

} // namespace tessera::recompute
