#pragma once

namespace tessera::cli {

/// Lets this process keep the memory that it frees. A step frees what the next
/// one allocates again; given back in between, every page of it is a fault and
/// is zeroed anew. Only glibc gives it back: a no-op with another C library.
void keep_freed_memory();

/// Gives freed memory back to the system once, for what is needed only at the
/// start; a program that keeps freed memory would hold it to its end.
void give_freed_memory_back();

} // namespace tessera::cli
