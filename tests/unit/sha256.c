/* SHA-256 against FIPS 180-4's examples and the NIST long message, HMAC against
 * RFC 4231. */
#include "base/sha256.h"
#include "security/secret.h"
#include "base/sha256_block.h"

#include "tests/support/tap.h"

#include <stdlib.h>

static const char *hash(const void *data, size_t bytes)
{
	static char hex[65];
	unsigned char d[SHA256_BYTES];
	sha256_digest(data, bytes, d);
	sha256_hex(d, hex);
	return hex;
}

static const char *mac(const void *key, size_t key_bytes, const void *data, size_t bytes)
{
	static char hex[65];
	unsigned char d[SHA256_BYTES];
	sha256_hmac(key, key_bytes, data, bytes, d);
	sha256_hex(d, hex);
	return hex;
}

static void vectors(void)
{
	static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
	is_str(hash("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "empty");
	is_str(hash(NULL, 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "empty, NULL");
	is_str(hash("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "abc");
	is_str(hash(two, 56), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", "two blocks");
}

static void million(void)
{
	unsigned char d[SHA256_BYTES];
	char hex[65], piece[999];
	sha256 s;
	memset(piece, 'a', sizeof piece);
	sha256_init(&s);
	for (size_t left = 1000000; left;) {
		size_t n = left < sizeof piece ? left : sizeof piece;
		sha256_update(&s, piece, n);
		left -= n;
	}
	sha256_final(&s, d);
	sha256_hex(d, hex);
	is_str(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", "a million a");
}

/* Every length around the padding's edges, cut at every place. */
static void pieces(void)
{
	unsigned char data[200], whole[SHA256_BYTES], cut[SHA256_BYTES];
	int wrong = 0;
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)(i * 37 + 1);
	for (size_t n = 0; n <= sizeof data; n++) {
		sha256_digest(data, n, whole);
		for (size_t at = 0; at <= n; at++) {
			sha256 s;
			sha256_init(&s);
			sha256_update(&s, data, at);
			sha256_update(&s, data + at, n - at);
			sha256_final(&s, cut);
			wrong += !secret_equal(whole, cut, sizeof cut);
		}
	}
	is_int(wrong, 0, "the same digest however the message is cut");
}

/* Both ways to do blocks, with every count of them. */
static void ways(void)
{
	unsigned char data[64 * 33];
	uint32_t a[8], b[8];
	int wrong = 0;
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)(i * i * 31 + (i >> 3));
	memset(a, 0x5a, sizeof a);
	if (!sha256_blocks_native(a, data, 0)) {
		skip("this CPU has no SHA instructions", "both ways agree");
		return;
	}
	for (size_t n = 0; n <= 33; n++) {
		memcpy(b, a, sizeof b);
		sha256_blocks_portable(a, data, n);
		sha256_blocks_native(b, data, n);
		wrong += memcmp(a, b, sizeof a) != 0;
	}
	is_int(wrong, 0, "both ways agree");
}

static void rfc4231(void)
{
	unsigned char key[131], data[50];
	memset(key, 0x0b, 20);
	is_str(mac(key, 20, "Hi There", 8), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
	       "RFC 4231 case 1");
	is_str(mac("Jefe", 4, "what do ya want for nothing?", 28),
	       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", "RFC 4231 case 2");
	memset(key, 0xaa, sizeof key);
	memset(data, 0xdd, sizeof data);
	is_str(mac(key, 20, data, 50), "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
	       "RFC 4231 case 3");
	is_str(mac(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54),
	       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54", "RFC 4231 case 6");
}

int main(void)
{
	unsigned char a[40], b[40];
	vectors();
	million();
	pieces();
	ways();
	rfc4231();
	memset(a, 7, sizeof a);
	memcpy(b, a, sizeof b);
	ok(secret_equal(a, b, sizeof a), "equal");
	for (size_t i = 0; i < sizeof a; i += 13) {
		b[i] ^= 0x80;
		ok(!secret_equal(a, b, sizeof a), "byte %zu differs", i);
		b[i] ^= 0x80;
	}
	ok(secret_equal(a, b, 0), "no bytes are equal");
	return done_testing();
}
