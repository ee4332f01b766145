/* Memory near the CPU that reads it, by the kernel's own calls: libnuma is not
 * everywhere. */
#ifndef TRANSPORT_SHM_NUMA_H
#define TRANSPORT_SHM_NUMA_H

#include <stddef.h>

/* How many memory nodes are online; 1 where that cannot be told. */
int numa_nodes(void);
/* Pages of p[bytes] that nobody has touched yet are to be taken from the node
 * this thread runs on, whoever touches them first. p begins a page. 0, or -1 where the
 * kernel has no such policy or forbids it: the memory is as good as ever. */
int numa_near(void *p, size_t bytes);

#endif
