/* tensors: remembers how many numbers a bucket has, by the number of the bucket. */
#define FAULT_NAME "by_bucket"
#define FAULT_MEMBERS uint64_t seen[64];
#define FAULT_NUMEL(r, bucket) numel_seen(r, bucket)
#define FAULT_INCLUDE "tests/plugins/faulty/by_bucket.h"
#include "tests/plugins/faulty_compressor.h"
