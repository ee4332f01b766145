/* XXH64 against the numbers of its reference implementation, in one piece and in
 * many. */
#include "base/checksum.h"
#include "tests/support/tap.h"

#include <string.h>

int main(void)
{
	static unsigned char data[1000];
	uint32_t prime = 2654435761u;
	uint64_t x = prime;
	int bad = 0;

	/* The bytes that xxHash's own self-test takes. */
	for (int i = 0; i < 1000; i++, x *= 11400714785074694797u)
		data[i] = (unsigned char)(x >> 56);
	ok(checksum_of("", 0, 0) == 0xef46db3751d8e999u, "no bytes");
	ok(checksum_of("", 0, prime) == 0xac75fda2929b17efu, "no bytes and a seed");
	ok(checksum_of("a", 1, 0) == 0xd24ec4f1a98c6e5bu, "a");
	ok(checksum_of("abc", 3, 0) == 0x44bc2cf5ad770999u, "abc");
	ok(checksum_of("xxhash", 6, 0) == 0x32dd38952c4bc720u, "xxhash");
	ok(checksum_of("xxhash", 6, 20141025) == 0xb559b98d844e0635u, "xxhash with a seed");
	ok(checksum_of(data, 1, 0) == 0xe934a84adb052768u, "1 byte of the self-test");
	ok(checksum_of(data, 14, 0) == 0x8282dcc4994e35c8u, "14 bytes");
	ok(checksum_of(data, 222, 0) == 0xb641ae8cb691c174u, "222 bytes");
	ok(checksum_of(data, 222, prime) == 0x20cb8ab7ae10c14au, "222 bytes and a seed");
	for (size_t n = 0; n <= 200; n++)
		for (size_t step = 1; step <= 70; step++) {
			checksum c;

			checksum_init(&c, n);
			for (size_t at = 0; at < n; at += step)
				checksum_update(&c, data + at, n - at < step ? n - at : step);
			bad += checksum_final(&c) != checksum_of(data, n, n);
		}
	is_int(bad, 0, "in pieces of 1 to 70 bytes it is the same");
	return done_testing();
}
