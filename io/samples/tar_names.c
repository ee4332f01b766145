#include "tar_names.h"

#include <string.h>

int32_t tar_parse_label(const unsigned char *p, uint64_t n)
{
	int64_t v = 0;
	while (n && (p[n - 1] == '\n' || p[n - 1] == '\r' || p[n - 1] == ' '))
		n--;
	if (!n)
		return -1;
	for (uint64_t i = 0; i < n; i++) {
		if (p[i] < '0' || p[i] > '9' || (v = 10 * v + (p[i] - '0')) > INT32_MAX)
			return -1;
	}
	return (int32_t)v;
}

bool tar_split_name(const char *name, size_t n, size_t *key)
{
	const char *slash = memrchr(name, '/', n), *base = slash ? slash + 1 : name;
	const char *first = memchr(name, '/', n), *end = first ? first : name + n;
	/* __name__ is for metadata */
	if (end - name >= 4 && !memcmp(name, "__", 2) && !memcmp(end - 2, "__", 2))
		return false;
	const char *dot = memchr(base, '.', (size_t)(name + n - base));
	if (!dot || dot == base)
		return false;
	*key = (size_t)(dot - name);
	return true;
}
