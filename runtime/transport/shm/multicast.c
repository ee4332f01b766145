#define _GNU_SOURCE
#include "transport/shm/multicast.h"

#include "transport/shm/shm_memory.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

multicast *multicast_create(void)
{
	multicast *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->mem = MAP_FAILED;
	s->fd = shm_memory(MULTICAST_BYTES);
	if (s->fd >= 0)
		s->mem = mmap(NULL, MULTICAST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, s->fd, 0);
	if (s->mem != MAP_FAILED)
		return s;
	multicast_free(s);
	return NULL;
}

void multicast_free(multicast *s)
{
	if (!s)
		return;
	if (s->mem != MAP_FAILED)
		munmap(s->mem, MULTICAST_BYTES);
	if (s->fd >= 0)
		close(s->fd);
	free(s);
}

uint64_t multicast_reserve(multicast *s, size_t bytes)
{
	uint64_t first = s->reserved;
	s->reserved += (bytes + MULTICAST_SLOT - 1) / MULTICAST_SLOT;
	return first;
}

const unsigned char *multicast_map(int fd)
{
	void *mem = MAP_FAILED;
	if (shm_valid(fd, MULTICAST_BYTES))
		mem = mmap(NULL, MULTICAST_BYTES, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	close(fd);
	return mem == MAP_FAILED ? NULL : mem;
}

void multicast_unmap(const unsigned char *mem)
{
	if (mem)
		munmap((void *)(uintptr_t)mem, MULTICAST_BYTES);
}
