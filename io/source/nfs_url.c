/* Parsing an NFS URL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/text.h"
#include "base/number.h"
#include "io/source/nfs_url.h"

static const char form[] = "nfs://SERVER[:PORT]/EXPORT/PATH[?version=3|4&nfsport=N&mountport=N&uid=N&gid=N]";

bool source_url_is(const char *spec)
{
	return !strncasecmp(spec, SOURCE_URL_SCHEME, strlen(SOURCE_URL_SCHEME));
}

static gradcomp_status wrong(gradcomp_error *err, const char *text, const char *what)
{
	char name[TEXT_NAME_MAX];
	return error_set(err, GRADCOMP_ERR_INVALID, "%s: %s; a source on an NFS server is %s",
	                 gradcomp_printable(text, name, sizeof name), what, form);
}

/* Reads the number `text`, of n bytes, in [least, most]. */
static bool number_in(const char *text, size_t n, int64_t least, int64_t most, int64_t *out)
{
	char digits[16];
	if (!n || n >= sizeof digits || text[0] == '+')
		return false;
	memcpy(digits, text, n);
	digits[n] = 0;
	return number_int(digits, out) == NUMBER_OK && *out >= least && *out <= most;
}

/* Reads SERVER[:PORT], or an IPv6 address in brackets. Returns what is wrong. */
static const char *take_server(source_url *u, const char *s, size_t n)
{
	static const char name_bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
	bool bracket = n && s[0] == '[';
	int64_t port = 0;
	if (memchr(s, '@', n))
		return "it has a user before the server; requests go out as the user who stages";
	const char *begin = s + bracket, *end = memchr(s, bracket ? ']' : ':', n);
	if (bracket && !end)
		return "its address has no ']'";
	size_t length = end ? (size_t)(end - begin) : n;
	const char *rest = end ? end + bracket : s + n;
	if (!length || length >= sizeof u->server)
		return length ? "the name of its server is too long" : "it has no server";
	for (size_t i = 0; i < length; i++)
		if (!memchr(name_bytes, begin[i], sizeof name_bytes - 1) && !(bracket && strchr(":%", begin[i])))
			return "the name of its server has a character that names do not have";
	if (bracket && !memchr(begin, ':', length))
		return "between its brackets is no address";
	if (!bracket && begin[0] == '-')
		return "the name of its server begins with '-'";
	if (rest < s + n && (*rest != ':' || !number_in(rest + 1, (size_t)(s + n - rest - 1), 1, 65535, &port)))
		return "its port is not a number from 1 to 65535";
	for (size_t i = 0; i < length; i++)
		u->server[i] = (char)(begin[i] >= 'A' && begin[i] <= 'Z' ? begin[i] + 32 : begin[i]);
	u->server[length] = 0;
	u->port = (int)port;
	return NULL;
}

/* One byte of the path, %XX or itself: 0 when it is not allowed. */
static char take_byte(const char **s, const char *end)
{
	const char *p = (*s)++;
	if (*p != '%')
		return (unsigned char)*p > 0x20 && *p != 0x7f ? *p : 0;
	if (end - p < 3)
		return 0;
	*s += 2;
	char lower[2] = {(char)(p[1] >= 'A' && p[1] <= 'F' ? p[1] + 32 : p[1]),
	                 (char)(p[2] >= 'A' && p[2] <= 'F' ? p[2] + 32 : p[2])};
	int hi = text_hex_digit(lower[0]), lo = text_hex_digit(lower[1]);
	return hi < 0 || lo < 0 ? 0 : (char)(hi << 4 | lo);
}

static const char *take_path(source_url *u, const char *s, const char *end)
{
	size_t o = 0, last = 0;
	while (s < end) {
		char c = take_byte(&s, end);
		if (!c)
			return "its path has a byte that must be written %XX, or a wrong %XX, or %00";
		if (o + 2 > sizeof u->path)
			return "its path is too long";
		u->path[o++] = c;
		if (c != '/' && s < end)
			continue;
		/* A component ends here: "//" and a slash at the end say nothing. */
		size_t n = o - last - (c == '/');
		if (n && !text_is_file_name(u->path + last, n))
			return n > NAME_MAX ? "its path has a name that is too long"
			                    : "its path has a component . or ..";
		if (!n && o > 1)
			o--;
		last = o;
	}
	while (o > 1 && u->path[o - 1] == '/')
		o--;
	u->path[o] = 0;
	return NULL;
}

static const char *take_argument(source_url *u, const char *key, size_t n)
{
	static const struct {
		const char *key;
		int64_t least, most;
	} known[] = {
		{"version", 3, 4},      {"nfsport", 1, 65535},  {"mountport", 1, 65535},
		{"uid", 0, 0xfffffffe}, {"gid", 0, 0xfffffffe},
	};
	const char *equals = memchr(key, '=', n);
	size_t k = equals ? (size_t)(equals - key) : n;
	int64_t value;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (k != strlen(known[i].key) || memcmp(key, known[i].key, k))
			continue;
		if (!equals || !number_in(equals + 1, n - k - 1, known[i].least, known[i].most, &value))
			return "an argument has a value that it cannot have";
		if (i == 1 && u->port && u->port != value)
			return "it has two ports";
		switch (i) {
		case 0:
			u->version = (int)value;
			break;
		case 1:
			u->port = (int)value;
			break;
		case 2:
			u->mount_port = (int)value;
			break;
		case 3:
			u->uid = (uint32_t)value;
			break;
		default:
			u->gid = (uint32_t)value;
		}
		return NULL;
	}
	return "it has an argument that is not known";
}

static const char *take_arguments(source_url *u, const char *s)
{
	const char *why = NULL;
	for (size_t n; s && !why; s = s[n] ? s + n + 1 : NULL) {
		n = strcspn(s, "&");
		why = take_argument(u, s, n);
	}
	u->own = u->uid == geteuid() && u->gid == getegid();
	if (!why && !u->own && geteuid() != 0)
		why = "its uid or gid is not yours; only root can read as somebody else";
	return why;
}

static void put_name(source_url *u)
{
	static const char hex[] = "0123456789ABCDEF";
	const char *format = strchr(u->server, ':') ? SOURCE_URL_SCHEME "[%s]" : SOURCE_URL_SCHEME "%s";
	int o = snprintf(u->name, sizeof u->name, format, u->server);
	if (u->port && u->port != 2049)
		o += snprintf(u->name + o, sizeof u->name - (size_t)o, ":%d", u->port);
	char *out = u->name + o, *end = u->name + sizeof u->name - 4;
	for (const unsigned char *s = (const unsigned char *)u->path; *s && out < end; s++) {
		if (*s > 0x20 && *s < 0x7f && !strchr("%?#", *s)) {
			*out++ = (char)*s;
			continue;
		}
		*out++ = '%';
		*out++ = hex[*s >> 4];
		*out++ = hex[*s & 15];
	}
	*out = 0;
}

gradcomp_status source_url_parse(const char *text, source_url *out, gradcomp_error *err)
{
	*out = (source_url){.version = 4, .uid = geteuid(), .gid = getegid()};
	const char *server = text + strlen(SOURCE_URL_SCHEME);
	size_t n = strcspn(server, "/?");
	const char *why = take_server(out, server, n);
	if (why)
		return wrong(err, text, why);
	const char *path = server + n, *end = path + strcspn(path, "?");
	if (*path != '/')
		return wrong(err, text, "it has no path");
	if ((why = take_path(out, path, end)) || (why = take_arguments(out, *end ? end + 1 : NULL)))
		return wrong(err, text, why);
	put_name(out);
	return GRADCOMP_OK;
}
