/* Names and sizes for people. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"

/* Length of the UTF-8 character at s (n bytes left) that is safe to print, 0 when
 * there is none: control characters of both ranges and bad sequences. */
static size_t printable_char(const unsigned char *s, size_t n)
{
	if (s[0] < 0x80)
		return s[0] >= 0x20 && s[0] != 0x7f && s[0] != '\\';
	size_t len = s[0] >= 0xf0 && s[0] <= 0xf4  ? 4
	             : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
	             : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
	                                           : 0;
	if (!len || len > n)
		return 0;
	for (size_t i = 1; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if (len == 2)
		return s[0] == 0xc2 && s[1] < 0xa0 ? 0 : 2;
	/* overlong forms, surrogates, beyond U+10FFFF */
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
	    (s[0] == 0xf4 && s[1] >= 0x90))
		return 0;
	/* U+2028..202E and U+2066..2069 break or turn lines round */
	if (s[0] == 0xe2 && s[1] == 0x80 && s[2] >= 0xa8 && s[2] <= 0xae)
		return 0;
	return s[0] == 0xe2 && s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9 ? 0 : len;
}

/* Prints from s[i] on into out while it fits; *i is the first byte not taken. */
static size_t printable_run(const unsigned char *s, size_t n, size_t *i, char *out, size_t room)
{
	static const char hex[] = "0123456789abcdef";
	size_t o = 0;
	while (*i < n) {
		size_t len = printable_char(s + *i, n - *i);
		if (o + (len ? len : 4) > room)
			break;
		if (len) {
			memcpy(out + o, s + *i, len);
			o += len;
			*i += len;
		} else {
			unsigned char c = s[(*i)++];
			out[o++] = '\\';
			out[o++] = 'x';
			out[o++] = hex[c >> 4];
			out[o++] = hex[c & 15];
		}
	}
	return o;
}

const char *gradcomp_printable(const char *name, char *out, size_t capacity)
{
	const unsigned char *s = (const unsigned char *)name;
	size_t n = strlen(name), i = 0;
	if (!capacity)
		return out;
	size_t o = printable_run(s, n, &i, out, capacity - 1);
	if (i < n && capacity > 16) {
		/* The end says most: the last bytes that fit in the second half. */
		size_t half = capacity / 2, tail = n > half / 4 ? n - half / 4 : 0;
		while (tail < n && (s[tail] & 0xc0) == 0x80)
			tail++;
		i = 0;
		o = printable_run(s, n, &i, out, capacity - 4 - half);
		memcpy(out + o, "...", 3);
		o += 3;
		o += printable_run(s, n, &tail, out + o, capacity - 1 - o);
	}
	out[o] = 0;
	return out;
}

const char *gradcomp_size_text(uint64_t bytes, char out[32])
{
	static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
	double v = (double)bytes;
	int u = 0;
	while (v >= 999.95 && u < 6) {
		v /= 1000;
		u++;
	}
	if (u)
		snprintf(out, 32, "%.1f %s", v, unit[u]);
	else
		snprintf(out, 32, "%d byte%s", (int)bytes, bytes == 1 ? "" : "s");
	return out;
}

gradcomp_status(text_cannot)(gradcomp_error *err, const char *what, const char *name)
{
	char text[TEXT_NAME_MAX];
	if (errno == ENOMEM)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory, trying to %s %s", what,
		                 gradcomp_printable(name, text, sizeof text));
	return error_errno(err, GRADCOMP_ERR_IO, "cannot %s %s", what, gradcomp_printable(name, text, sizeof text));
}

bool text_is_file_name(const char *name, size_t n)
{
	return n && n <= NAME_MAX && !(name[0] == '.' && (n == 1 || (n == 2 && name[1] == '.'))) &&
	       !memchr(name, '/', n);
}

int text_hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool text_unhex_sha256(const char *hex, unsigned char digest[SHA256_BYTES])
{
	for (int i = 0; i < SHA256_BYTES; i++) {
		int hi = text_hex_digit(hex[2 * i]), lo = hi < 0 ? -1 : text_hex_digit(hex[2 * i + 1]);
		if (lo < 0)
			return false;
		digest[i] = (unsigned char)(hi << 4 | lo);
	}
	return true;
}

int text_hidden(const char *text, const char **what)
{
	static const struct {
		const char *bytes, *what;
	} hidden[] = {
		{"\r", "a carriage return (\\r)"},
		{"\n", "a newline (\\n)"},
		{"\x7f", "a delete (0x7f)"},
		{"\xc2\xa0", "a no-break space (U+00A0)"},
		{"\xc2\xad", "a soft hyphen (U+00AD)"},
		{"\xe2\x80\x8b", "a zero-width space (U+200B)"},
		{"\xe2\x80\x8c", "a zero-width non-joiner (U+200C)"},
		{"\xe2\x80\x8d", "a zero-width joiner (U+200D)"},
		{"\xe2\x80\x8e", "a mark of direction (U+200E)"},
		{"\xe2\x80\x8f", "a mark of direction (U+200F)"},
		{"\xe2\x80\xaf", "a narrow no-break space (U+202F)"},
		{"\xe2\x81\xa0", "a word joiner (U+2060)"},
		{"\xe3\x80\x80", "an ideographic space (U+3000)"},
		{"\xef\xbb\xbf", "a byte order mark (U+FEFF)"},
	};
	for (int at = 0; text[at]; at++) {
		for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
			if (!strncmp(text + at, hidden[i].bytes, strlen(hidden[i].bytes))) {
				*what = hidden[i].what;
				return at;
			}
		/* Blanks of other widths, and marks and embeddings of direction. */
		if (!strncmp(text + at, "\xe2\x80", 2) &&
		    ((unsigned char)text[at + 2] < 0x8b ||
		     ((unsigned char)text[at + 2] >= 0xa8 && (unsigned char)text[at + 2] <= 0xae))) {
			*what = "a blank or a mark that is none of ASCII (U+2000 to U+202E)";
			return at;
		}
		if ((unsigned char)text[at] < ' ' && text[at] != '\t') {
			*what = "a control character";
			return at;
		}
	}
	return -1;
}
