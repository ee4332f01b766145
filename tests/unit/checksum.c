/* The checksum that saved states and values of datasets hold and send is XXH64: the libxxhash that is linked gives
 * the numbers that xxHash publishes. */
#include "tests/support/tap.h"

#include <string.h>
#include <xxhash.h>

int main(void)
{
	static unsigned char data[222];
	uint32_t prime = 2654435761u;
	uint64_t x = prime;
	/* The bytes that xxHash's own self-test takes. */
	for (size_t i = 0; i < sizeof data; i++, x *= 11400714785074694797u)
		data[i] = (unsigned char)(x >> 56);
	ok(XXH64("", 0, 0) == 0xef46db3751d8e999u, "no bytes");
	ok(XXH64("", 0, prime) == 0xac75fda2929b17efu, "no bytes and a seed");
	ok(XXH64("a", 1, 0) == 0xd24ec4f1a98c6e5bu, "a");
	ok(XXH64("abc", 3, 0) == 0x44bc2cf5ad770999u, "abc");
	ok(XXH64("xxhash", 6, 0) == 0x32dd38952c4bc720u, "xxhash");
	ok(XXH64("xxhash", 6, 20141025) == 0xb559b98d844e0635u, "xxhash with a seed");
	ok(XXH64(data, 1, 0) == 0xe934a84adb052768u, "1 byte of the self-test");
	ok(XXH64(data, 14, 0) == 0x8282dcc4994e35c8u, "14 bytes");
	ok(XXH64(data, 222, 0) == 0xb641ae8cb691c174u, "222 bytes");
	ok(XXH64(data, 222, prime) == 0x20cb8ab7ae10c14au, "222 bytes and a seed");
	return done_testing();
}
