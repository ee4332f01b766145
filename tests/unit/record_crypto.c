/* Keys, proofs and records against bytes that another implementation made
 * (Python's hmac, and ChaCha20, Poly1305, AES and GHASH written out from RFC 8439 and
 * SP 800-38D), and records that are not what was sent. */
#include "tests/support/tap.h"

#include "transport/wire/handshake.h"
#include "transport/wire/record_crypto.h"
#include "base/sha256.h"
#include "transport/wire/wire.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char secret[SECRET_BYTES];
static hello h;

static void hex(const unsigned char *p, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++)
		snprintf(out + 2 * i, 3, "%02x", p[i]);
}

static void sample(record_cipher kind)
{
	for (int i = 0; i < SECRET_BYTES; i++)
		secret[i] = (unsigned char)i;
	h = (hello){.channel = 0x1122334455667788,
	            .from = 7,
	            .to = 5,
	            .nranks = 9,
	            .chunk = 65536,
	            .kind = HELLO_TCP,
	            .stream = 2,
	            .streams = 3,
	            .frames = (uint8_t)kind};
	for (int i = 0; i < NONCE_BYTES; i++) {
		h.nonce[i] = (unsigned char)(64 + i);
		h.answer[i] = (unsigned char)(128 + i);
	}
}

static void hashes(void)
{
	/* RFC 4231, case 2; RFC 5869, case 1. */
	unsigned char key[SECRET_BYTES], other[SECRET_BYTES], ikm[22], salt[13];
	char text[2 * SECRET_BYTES + 1];
	hmac_sha256_ctx m;
	sha256_hmac_init(&m, "Jefe", 4);
	sha256_hmac_update(&m, "what do ya want ", 16);
	sha256_hmac_update(&m, "for nothing?", 12);
	sha256_hmac_final(&m, key);
	hex(key, sizeof key, text);
	is_str(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", "HMAC-SHA-256 of RFC 4231");
	memset(ikm, 0x0b, sizeof ikm);
	for (int i = 0; i < 13; i++)
		salt[i] = (unsigned char)i;
	secret_extract(salt, sizeof salt, ikm, sizeof ikm, key);
	hex(key, sizeof key, text);
	is_str(text, "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5", "HKDF-Extract of RFC 5869");
	memset(ikm, 0xaa, sizeof ikm);
	memset(key, 0x55, sizeof key);
	memset(other, 0xaa, sizeof other);
	secret_extract(key, sizeof key, other, sizeof other, key);
	secret_expand(key, "gradcomp 2 job", "slurm.pmix.7.0", 14, key);
	hex(key, sizeof key, text);
	is_str(text, "1f0204a1b7864817e5f911f9598ce560567ec46eb8aa401fa34e16f39d23a31e", "the key of a job");
}

static void proofs(void)
{
	unsigned char text[HELLO_BYTES], mac[SECRET_BYTES];
	char got[2 * SECRET_BYTES + 1];
	hello back;
	sample(CIPHER_MAC);
	handshake_write(&h, text);
	handshake_mac(secret, ROLE_ACCEPT, text, h.answer, mac);
	hex(mac, sizeof mac, got);
	is_str(got, "bea437141067e99ad75777890ba74e8510d3ad084c2381b91d84fb8b07a3d56e", "the accepting side's proof");
	handshake_mac(secret, ROLE_CONNECT, text, h.answer, mac);
	hex(mac, sizeof mac, got);
	is_str(got, "26d2a935edc99bca5e308074e4a7eb46941317c3d4bcc42721099b3ab743fd31", "the connecting side's proof");
	ok(!handshake_read(text, &back) && back.frames == CIPHER_MAC && back.channel == h.channel && back.stream == 2,
	   "a HELLO reads back");
	text[3] = '1';
	like(handshake_read(text, &back), "another version", "version 1 is told from noise");
	text[3] = HELLO_VERSION;
	text[4] = CIPHER_AES + 1;
	ok(handshake_read(text, &back) != NULL, "a kind of records that there is not");
}

static void memory(void)
{
	unsigned char *p = secret_alloc(100);
	char line[200], flags[200] = "";
	unsigned long from, to, at = (unsigned long)p;
	FILE *f = fopen("/proc/self/smaps", "r");
	int status, inside = 0;
	pid_t pid;
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = at >= from && at < to;
		else if (inside && !strncmp(line, "VmFlags:", 8))
			strcpy(flags, line);
	}
	if (f)
		fclose(f);
	if (*flags)
		like(flags, " dd ", "secrets stay out of core files");
	else
		skip("the kernel does not tell", "secrets stay out of core files");
	memset(p, 0x5a, 100);
	pid = fork();
	if (!pid)
		_exit(p[0] || p[99]);
	waitpid(pid, &status, 0);
	ok(!status, "and out of processes that are forked off");
	ok(p[0] == 0x5a, "the rank keeps them");
	secret_free(p, 100);
}

static void vectors(void)
{
	static const struct {
		record_cipher kind;
		const char *first, *second, *name;
	} v[] = {
		{CIPHER_MAC,
	         "1e0000007369787465656e20627974652068647220616e642061207061796c6f616492efe9075c75dca1f3d0f9e834e21e4b",
	         "1e0000007369787465656e20627974652068647220616e642061207061796c6f6164c131d42ebc06db822a114582c2fb539b",
	         "authenticated"},
		{CIPHER_CHACHA,
	         "1e000000d97edeaf60b3bd528acf330a8936de67733afb2db2d3923d43aefaf70c69ff0c44890f3e52a7b947a97652f581b6",
	         "1e0000009fafaaae62757d69d891afd6b3f5460f75d4bbb35b4ce2c110d4dec7549d9aed24a693c719f9f3b767d61552dbb7",
	         "ChaCha20-Poly1305"},
		{CIPHER_AES,
	         "1e000000d67166e6ed917125fdf9f9378466fcbcb6df19ca51260a2e29eca28a5a7a07838877a7361a5143988b103775f910",
	         "1e0000007a8bc4f182f8726755aebc4a0fbf16ab865b92703c393b725a91f06a1262c9183fcd3b54aef926f27e9c1b1fabb9",
	         "AES-256-GCM"},
	};
	static const char msg[] = "sixteen byte hdr and a payload";

	for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
		unsigned char rec[64];
		char text[130];
		record_crypto *s;

		if (v[i].kind == CIPHER_AES && !record_crypto_has_aes()) {
			skip("this CPU has no AES", "%s", v[i].name);
			continue;
		}
		sample(v[i].kind);
		s = record_crypto_new(secret, &h, 1);
		for (int second = 0; second < 2; second++) {
			memcpy(rec + RECORD_HEAD, msg, sizeof msg - 1);
			hex(rec, record_crypto_seal(s, rec, sizeof msg - 1), text);
			is_str(text, second ? v[i].second : v[i].first, v[i].name);
		}
		record_crypto_free(s);
	}
}

/* Opens records that are not what was sent. */
static void altered(record_cipher kind)
{
	static unsigned char rec[3][RECORD_MAX], bad[RECORD_MAX], out[RECORD_MAX];
	size_t n = 100, whole;
	int opened = 0, changed = 0;
	record_crypto *a, *b;
	sample(kind);
	a = record_crypto_new(secret, &h, 1);
	b = record_crypto_new(secret, &h, 0);
	for (int i = 0; i < 3; i++) {
		memset(rec[i] + RECORD_HEAD, 'a' + i, n);
		whole = record_crypto_seal(a, rec[i], n);
	}
	is_int(whole, n + RECORD_OVERHEAD, "kind %d: %zu bytes more", kind, (size_t)RECORD_OVERHEAD);
	for (size_t bit = 0; bit < 8 * whole; bit++) {
		memcpy(bad, rec[0], whole);
		bad[bit / 8] ^= (unsigned char)(1u << bit % 8);
		size_t m = record_crypto_length(bad);
		opened += m && m <= RECORD_CONTENT_MAX && !record_crypto_peek(b, bad, m, out);
	}
	is_int(opened, 0, "kind %d: no record with one bit changed opens", kind);
	ok(record_crypto_open(b, rec[1], n, out), "kind %d: nor one that comes too early", kind);
	ok(record_crypto_open(a, rec[0], n, out), "kind %d: nor one that is sent back", kind);
	ok(!record_crypto_open(b, rec[0], n, out) && out[0] == 'a' && out[n - 1] == 'a', "kind %d: the right one does",
	   kind);
	ok(record_crypto_open(b, rec[0], n, out), "kind %d: not twice", kind);
	ok(!record_crypto_open(b, rec[1], n, out) && !record_crypto_peek(b, rec[2], n, out) &&
	           !record_crypto_open(b, rec[2], n, out),
	   "kind %d: those that follow do", kind);
	for (int i = 0; i < 3; i++)
		changed += memcmp(rec[0] + RECORD_HEAD + n, rec[i] + RECORD_HEAD + n, RECORD_TAG) != 0;
	is_int(changed, 2, "kind %d: tags differ", kind);
	record_crypto_free(a);
	record_crypto_free(b);

	/* Another connection: a nonce differs by a bit; another job. */
	a = record_crypto_new(secret, &h, 1);
	record_crypto_seal(a, rec[0], n);
	h.answer[31] ^= 1;
	b = record_crypto_new(secret, &h, 0);
	ok(record_crypto_open(b, rec[0], n, out), "kind %d: nor on another connection", kind);
	record_crypto_free(b);
	h.answer[31] ^= 1;
	secret[0] ^= 1;
	b = record_crypto_new(secret, &h, 0);
	ok(record_crypto_open(b, rec[0], n, out), "kind %d: nor in another job", kind);
	record_crypto_free(a);
	record_crypto_free(b);
}

static void sizes(record_cipher kind)
{
	static const size_t n[] = {1, 15, 16, 17, 63, 64, 65, 1000, 65000, RECORD_CONTENT_MAX - 1, RECORD_CONTENT_MAX};
	static unsigned char rec[RECORD_MAX], out[RECORD_MAX], in[RECORD_MAX];
	unsigned char head[RECORD_HEAD];
	int wrong = 0, seen = 0;
	record_crypto *a, *b;
	sample(kind);
	a = record_crypto_new(secret, &h, 0);
	b = record_crypto_new(secret, &h, 1);
	for (size_t i = 0; i < sizeof n / sizeof n[0]; i++) {
		secret_random(in, n[i], NULL);
		memcpy(rec + RECORD_HEAD, in, n[i]);
		wrong +=
			record_crypto_seal(a, rec, n[i]) != n[i] + RECORD_OVERHEAD || record_crypto_length(rec) != n[i];
		seen += n[i] > 16 && !memcmp(rec + RECORD_HEAD, in, n[i]);
		wrong += record_crypto_open(b, rec, n[i], i % 2 ? out : rec + RECORD_HEAD) ||
		         memcmp(i % 2 ? out : rec + RECORD_HEAD, in, n[i]);
	}
	is_int(wrong, 0, "kind %d: all sizes there and back", kind);
	is_int(seen != 0, kind == CIPHER_MAC, "kind %d: the content can%s be read", kind,
	       kind == CIPHER_MAC ? "" : "not");
	put32(head, RECORD_CONTENT_MAX + 1);
	is_int(record_crypto_length(head), 0, "a record of more than 64 KiB is none");
	put32(head, 0);
	is_int(record_crypto_length(head), 0, "nor is one without content");
	/* The next key. */
	for (long i = 0; i < (long)RECORDS_PER_KEY + 3 && !wrong; i++) {
		record_crypto_seal(a, rec, 1);
		wrong += record_crypto_open(b, rec, 1, out) != 0;
	}
	is_int(wrong, 0, "kind %d: records go on when the key changes", kind);
	record_crypto_free(a);
	record_crypto_free(b);
}

int main(void)
{
	record_crypto_start(NULL);
	hashes();
	proofs();
	memory();
	if (!record_crypto_available()) {
		skip("built without libsodium", "records");
		return done_testing();
	}
	vectors();
	for (record_cipher k = CIPHER_MAC; k <= CIPHER_AES; k++) {
		if (k == CIPHER_AES && !record_crypto_has_aes()) {
			skip("this CPU has no AES", "kind %d", k);
			continue;
		}
		altered(k);
		sizes(k);
	}
	return done_testing();
}
