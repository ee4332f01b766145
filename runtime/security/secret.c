#define _GNU_SOURCE
#include "security/secret.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/error.h"
#include "base/sha256.h"

bool secret_equal(const void *a, const void *b, size_t bytes)
{
	const volatile unsigned char *x = a, *y = b;
	unsigned char differ = 0;
	for (size_t i = 0; i < bytes; i++)
		differ |= (unsigned char)(x[i] ^ y[i]);
	return differ == 0;
}

void secret_wipe(void *p, size_t bytes)
{
	explicit_bzero(p, bytes);
}

gradcomp_status secret_random(void *out, size_t bytes, gradcomp_error *err)
{
	unsigned char *p = out;
	while (bytes) {
		ssize_t n = getrandom(p, bytes, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return error_errno(err, GRADCOMP_ERR_IO, "the kernel gives no random bytes");
		p += n;
		bytes -= (size_t)n;
	}
	return GRADCOMP_OK;
}

void secret_extract(const void *salt, size_t salt_bytes, const void *input, size_t bytes,
                    unsigned char key[SECRET_BYTES])
{
	sha256_hmac(salt, salt_bytes, input, bytes, key);
}

void secret_expand(const unsigned char key[SECRET_BYTES], const char *label, const void *info, size_t bytes,
                   unsigned char out[SECRET_BYTES])
{
	const unsigned char first = 1; /* block of HKDF's output */
	hmac_sha256_ctx m;
	sha256_hmac_init(&m, key, SECRET_BYTES);
	sha256_hmac_update(&m, label, strlen(label) + 1);
	sha256_hmac_update(&m, info, bytes);
	sha256_hmac_update(&m, &first, 1);
	sha256_hmac_final(&m, out);
}

void *secret_alloc(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	/* Each is a help, none a condition. */
	(void)madvise(p, bytes, MADV_DONTDUMP);
	(void)madvise(p, bytes, MADV_WIPEONFORK);
	(void)mlock(p, bytes);
	return p;
}

void secret_free(void *p, size_t bytes)
{
	if (!p)
		return;
	secret_wipe(p, bytes);
	munmap(p, bytes);
}
