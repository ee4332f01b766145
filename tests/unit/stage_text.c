/* Names and sizes in messages, checksums in hexadecimal. */
#include "base/sha256.h"
#include "base/text.h"
#include "tests/support/tap.h"

static const char *show(const char *name)
{
	static char out[400];
	return gradcomp_printable(name, out, sizeof out);
}

static void names(void)
{
	char out[40], name[1001];
	is_str(show("train/a b.png"), "train/a b.png", "plain");
	is_str(show("a\nb\033[2J\177"), "a\\x0ab\\x1b[2J\\x7f", "control bytes");
	is_str(show("a\\b"), "a\\x5cb", "a backslash is not mistaken for an escape");
	is_str(show("Übung/日本/😀"), "Übung/日本/😀", "UTF-8");
	is_str(show("\xff\xc3"), "\\xff\\xc3", "not UTF-8");
	is_str(show("\xc0\x8a\xe0\x80\x8a"), "\\xc0\\x8a\\xe0\\x80\\x8a", "overlong forms");
	is_str(show("\xed\xa0\x80\xf4\x90\x80\x80"), "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80", "beyond Unicode");
	is_str(show("\xc2\x9b"
	            "31m"),
	       "\\xc2\\x9b31m", "C1 control");
	is_str(show("a\xe2\x80\xae"
	            "b"),
	       "a\\xe2\\x80\\xae"
	       "b",
	       "right-to-left override");
	memset(name, 'x', 1000);
	name[1000] = 0;
	memcpy(name, "first", 5);
	memcpy(name + 995, "last!", 5);
	gradcomp_printable(name, out, sizeof out);
	ok(strlen(out) < sizeof out && !strncmp(out, "first", 5) && strstr(out, "...") && strstr(out, "last!"),
	   "the middle of a long name is left out: %s", out);
	memset(name, '\001', 1000);
	gradcomp_printable(name, out, sizeof out);
	ok(strlen(out) < sizeof out && strstr(out, "..."), "a long name of control bytes fits: %s", out);
	size_t too_long = 0;
	for (size_t n = 1; n < 20; n++) {
		memset(out, '#', sizeof out);
		gradcomp_printable("\001\002\003\004\005", out, n);
		too_long += memchr(out, 0, n) == NULL || out[n] != '#';
	}
	is_int(too_long, 0, "never more than its room");
}

static void sizes(void)
{
	char out[32];
	is_str(gradcomp_size_text(0, out), "0 bytes", "0");
	is_str(gradcomp_size_text(1, out), "1 byte", "1");
	is_str(gradcomp_size_text(999, out), "999 bytes", "999");
	is_str(gradcomp_size_text(1000, out), "1.0 kB", "1000");
	is_str(gradcomp_size_text(999949, out), "999.9 kB", "just under");
	is_str(gradcomp_size_text(999960, out), "1.0 MB", "rounds up to the next unit");
	is_str(gradcomp_size_text(3200000000u, out), "3.2 GB", "3.2 GB");
	is_str(gradcomp_size_text(UINT64_MAX, out), "18.4 EB", "the largest");
}

static void hexadecimal(void)
{
	unsigned char in[SHA256_BYTES], out[SHA256_BYTES];
	char hex[2 * SHA256_BYTES + 1];
	for (int i = 0; i < SHA256_BYTES; i++)
		in[i] = (unsigned char)(i * 37);
	sha256_hex(in, hex);
	ok(text_unhex_sha256(hex, out) && !memcmp(in, out, sizeof in), "there and back");
	hex[63] = 'G';
	ok(!text_unhex_sha256(hex, out), "not a digit");
	hex[63] = 'A';
	ok(!text_unhex_sha256(hex, out), "upper case is not what is written");
	ok(!text_unhex_sha256("12", out), "too short");
}

int main(void)
{
	names();
	sizes();
	hexadecimal();
	return done_testing();
}
