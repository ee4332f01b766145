/* Memory that ranks of a node share, and where on the machine it is. libnuma is not everywhere, so the kernel's own
 * calls are used. */
#define _GNU_SOURCE
#include "transport/shm/shm_memory.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define NODES_MAX 1024 /* the most that the kernel can be configured for */
#define WORD_BITS (8 * sizeof(unsigned long))

int shm_memory(size_t bytes)
{
	int fd = memfd_create("gradcomp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && !ftruncate(fd, (off_t)bytes) && !fcntl(fd, F_ADD_SEALS, SEALS))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

bool shm_valid(int fd, size_t bytes)
{
	struct stat st;
	return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size == (off_t)bytes &&
	       (fcntl(fd, F_GET_SEALS) & SEALS) == SEALS;
}

/* A list as 0-1,4. */
int shm_numa_nodes(void)
{
	char list[256], *p = list, *end;
	int fd = open("/sys/devices/system/node/online", O_RDONLY | O_CLOEXEC), nodes = 0;
	ssize_t n = fd >= 0 ? read(fd, list, sizeof list - 1) : -1;
	if (fd >= 0)
		close(fd);
	list[n > 0 ? n : 0] = '\0';
	while (*p >= '0' && *p <= '9') {
		long first = strtol(p, &end, 10), last = first;

		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		nodes += last >= first && last < NODES_MAX ? (int)(last - first + 1) : 0;
		p = end + (*end == ',');
	}
	return nodes > 0 ? nodes : 1;
}

int shm_numa_near(void *p, size_t bytes)
{
	unsigned long mask[NODES_MAX / WORD_BITS] = {0};
	unsigned node;
	if (getcpu(NULL, &node) || node >= NODES_MAX)
		return -1;
	mask[node / WORD_BITS] |= 1ul << node % WORD_BITS;
	/* The kernel takes the number of bits plus one. */
	return syscall(SYS_mbind, p, bytes, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX + 1, 0u) ? -1 : 0;
}
