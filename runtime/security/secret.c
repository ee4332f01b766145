#define _GNU_SOURCE
#include "security/secret.h"

#include "base/error.h"

#include <string.h>
#include <sys/mman.h>

#if HAVE_SODIUM

gradcomp_status secret_start(gradcomp_error *err)
{
	if (sodium_init() < 0)
		return error_set(err, GRADCOMP_ERR_STATE, "libsodium cannot be used: sodium_init() failed");
	return GRADCOMP_OK;
}

void secret_mac_init(secret_mac *m, const void *key, size_t bytes)
{
	crypto_auth_hmacsha256_init(&m->state, key, bytes);
}

void secret_mac_update(secret_mac *m, const void *data, size_t bytes)
{
	crypto_auth_hmacsha256_update(&m->state, data, bytes);
}

void secret_mac_final(secret_mac *m, unsigned char mac[SECRET_BYTES])
{
	crypto_auth_hmacsha256_final(&m->state, mac);
	sodium_memzero(m, sizeof *m);
}

int secret_equal(const void *a, const void *b, size_t bytes)
{
	return !sodium_memcmp(a, b, bytes);
}

void secret_wipe(void *p, size_t bytes)
{
	sodium_memzero(p, bytes);
}

/* It ends the process where the kernel has none to give. */
gradcomp_status secret_random(void *out, size_t bytes, gradcomp_error *err)
{
	(void)err;
	randombytes_buf(out, bytes);
	return GRADCOMP_OK;
}

#else

#include <errno.h>
#include <sys/random.h>

gradcomp_status secret_start(gradcomp_error *err)
{
	(void)err;
	return GRADCOMP_OK;
}

void secret_mac_init(secret_mac *m, const void *key, size_t bytes)
{
	hmac_sha256_init(&m->state, key, bytes);
}

void secret_mac_update(secret_mac *m, const void *data, size_t bytes)
{
	hmac_sha256_update(&m->state, data, bytes);
}

void secret_mac_final(secret_mac *m, unsigned char mac[SECRET_BYTES])
{
	hmac_sha256_final(&m->state, mac);
}

int secret_equal(const void *a, const void *b, size_t bytes)
{
	return sha256_equal(a, b, bytes);
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

#endif

void secret_extract(const void *salt, size_t salt_bytes, const void *input, size_t bytes,
                    unsigned char key[SECRET_BYTES])
{
	secret_mac m;

	secret_mac_init(&m, salt, salt_bytes);
	secret_mac_update(&m, input, bytes);
	secret_mac_final(&m, key);
}

void secret_expand(const unsigned char key[SECRET_BYTES], const char *label, const void *info, size_t bytes,
                   unsigned char out[SECRET_BYTES])
{
	const unsigned char first = 1; /* block of HKDF's output */
	secret_mac m;

	secret_mac_init(&m, key, SECRET_BYTES);
	secret_mac_update(&m, label, strlen(label) + 1);
	secret_mac_update(&m, info, bytes);
	secret_mac_update(&m, &first, 1);
	secret_mac_final(&m, out);
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
