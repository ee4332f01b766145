/* libnfs decodes what a server sends with counts it does not check (4.0.0: a product
 * that wraps round, reads behind the end). Its decoders of what has a length are called
 * through the dynamic linker, which finds these first: a count has to fit into what is
 * left of the answer, then libnfs's own goes on. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/time.h>

#include <nfsc/libnfs-zdr.h>
#include <nfsc/libnfs-raw-nfs.h>

#include "io/source/nfs/nfs.h"

/* An array's elements take at most so much memory; ours have at most a few dozen. */
#define ARRAY_MAX (1u << 20)
/* Elements of a list, which is decoded by recursion. */
#define LIST_MAX 20000

#define REAL(name) \
	static __typeof__(&name) real_##name(void) \
	{ \
		return (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
	}
REAL(libnfs_zdr_array)
REAL(libnfs_zdr_bytes)
REAL(libnfs_zdr_string)
REAL(libnfs_zdr_opaque)
REAL(libnfs_zdr_pointer)

static int64_t left(const ZDR *z)
{
	return z->pos < 0 || z->pos > z->size ? 0 : (int64_t)z->size - z->pos;
}

/* The count that comes next, and how many bytes are behind it. */
static bool_t peek(const ZDR *z, uint32_t *count, int64_t *behind)
{
	if (left(z) < 4)
		return 0;
	memcpy(count, z->buf + z->pos, 4);
	*count = ntohl(*count);
	*behind = left(z) - 4;
	return 1;
}

GRADCOMP_EXPORT bool_t libnfs_zdr_array(ZDR *z, char **array, uint32_t *n, uint32_t most, uint32_t bytes,
                                        zdrproc_t proc)
{
	uint32_t count;
	int64_t behind;
	if (z->x_op == ZDR_DECODE &&
	    (!peek(z, &count, &behind) || count > behind / 4 || (uint64_t)count * bytes > ARRAY_MAX))
		return 0;
	return real_libnfs_zdr_array()(z, array, n, most, bytes, proc);
}

/* Set when libnfs_zdr_bytes() below was called on this thread. */
static _Thread_local bool reached;

GRADCOMP_EXPORT bool_t libnfs_zdr_bytes(ZDR *z, char **data, uint32_t *n, uint32_t most)
{
	uint32_t count;
	int64_t behind;
	reached = true;
	if (z->x_op == ZDR_DECODE && (!peek(z, &count, &behind) || count > behind))
		return 0;
	return real_libnfs_zdr_bytes()(z, data, n, most);
}

GRADCOMP_EXPORT bool_t libnfs_zdr_string(ZDR *z, char **text, uint32_t most)
{
	uint32_t count;
	int64_t behind;
	if (z->x_op == ZDR_DECODE && (!peek(z, &count, &behind) || count > behind))
		return 0;
	return real_libnfs_zdr_string()(z, text, most);
}

GRADCOMP_EXPORT bool_t libnfs_zdr_opaque(ZDR *z, char *data, uint32_t n)
{
	return (z->x_op != ZDR_DECODE || n <= left(z)) && real_libnfs_zdr_opaque()(z, data, n);
}

GRADCOMP_EXPORT bool_t libnfs_zdr_pointer(ZDR *z, char **object, uint32_t bytes, zdrproc_t proc)
{
	static _Thread_local unsigned depth;
	bool_t good = depth++ < LIST_MAX && real_libnfs_zdr_pointer()(z, object, bytes, proc);
	depth--;
	return good;
}

/* A handle of eight bytes in an answer that ends before them; they are there, should libnfs
 * read them. */
bool nfs_guarded(void)
{
	char answer[12] = {0, 0, 0, 8};
	nfs_fh3 handle = {{0}};
	ZDR z;
	reached = false;
	libnfs_zdrmem_create(&z, answer, 4, ZDR_DECODE);
	zdr_nfs_fh3(&z, &handle);
	libnfs_zdr_destroy(&z);
	return reached;
}
