#pragma once

namespace tessera::cli {

/// Lets this process keep the memory that it frees. A step allocates again what the step before it
/// freed; if glibc returned that memory to the system in between, the kernel would have to fault in
/// and zero every page of it anew. Other C libraries do not return it: the call does nothing there.
void keep_freed_memory();

/// Returns freed memory to the system once. It is for memory that is needed only at the start,
/// which a program that keeps freed memory would otherwise hold to its end.
void give_freed_memory_back();

} // namespace tessera::cli
