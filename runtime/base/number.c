#include "base/number.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t number_locale;
static pthread_once_t number_once = PTHREAD_ONCE_INIT;

static void number_make_locale(void)
{
	number_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* The thread's locale becomes "C"; returns what to give to uselocale() after. */
static locale_t number_enter(void)
{
	pthread_once(&number_once, number_make_locale);
	return uselocale(number_locale);
}

number_result number_int(const char *text, int64_t *out)
{
	const char *digits = text + (*text == '-' || *text == '+');
	char *end;
	long long v;

	if (*digits < '0' || *digits > '9')
		return NUMBER_MALFORMED;
	errno = 0;
	v = strtoll(text, &end, 10);
	if (*end)
		return NUMBER_MALFORMED;
	if (errno == ERANGE)
		return NUMBER_OVERFLOW;
	*out = v;
	return NUMBER_OK;
}

number_result number_float(const char *text, double *out)
{
	locale_t outer;
	char *end;
	double v;
	if (!*text || text[strspn(text, "0123456789.eE+-")])
		return NUMBER_MALFORMED;
	outer = number_enter();
	v = strtod(text, &end);
	uselocale(outer);
	if (*end || end == text)
		return NUMBER_MALFORMED;
	if (!isfinite(v))
		return NUMBER_OVERFLOW;
	*out = v;
	return NUMBER_OK;
}

number_result number_size(const char *text, int64_t *out)
{
	static const char units[] = "KMGT";
	int64_t v = 0;
	int shift = 0, overflow = 0;
	if (*text < '0' || *text > '9')
		return NUMBER_MALFORMED;
	for (; *text >= '0' && *text <= '9'; text++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *text - '0', &v))
			overflow = 1;
	if (*text && strchr(units, toupper((unsigned char)*text))) {
		shift = 10 * (int)(strchr(units, toupper((unsigned char)*text)) - units + 1);
		text++;
		if ((text[0] == 'i' || text[0] == 'I') && (text[1] == 'b' || text[1] == 'B'))
			text++;
	}
	if (*text == 'b' || *text == 'B')
		text++;
	if (*text)
		return NUMBER_MALFORMED;
	if (overflow || v > INT64_MAX >> shift)
		return NUMBER_OVERFLOW;
	*out = v << shift;
	return NUMBER_OK;
}

number_result number_share(const char *text, int64_t *bytes, int *percent)
{
	size_t digits = strspn(text, "0123456789");
	*percent = 0;
	if (strcmp(text + digits, "%"))
		return number_size(text, bytes);
	if (digits < 1 || digits > 3)
		return NUMBER_MALFORMED;
	*percent = atoi(text);
	return *percent >= 1 && *percent <= 100 ? NUMBER_OK : NUMBER_MALFORMED;
}

number_result number_marks(const char *text, unsigned *high, unsigned *low)
{
	unsigned a = 0, b = 0;
	int used = 0;
	if (strspn(text, "0123456789,") != strlen(text) || sscanf(text, "%3u,%3u%n", &a, &b, &used) != 2 ||
	    text[used] || a > 100 || a < b || b < 1)
		return NUMBER_MALFORMED;
	*high = a;
	*low = b;
	return NUMBER_OK;
}

number_result number_ports(const char *text, uint16_t *first, uint16_t *last)
{
	unsigned a = 0, b = 0;
	int used = 0;
	if (*text && (*text < '0' || *text > '9' || sscanf(text, "%5u-%5u%n", &a, &b, &used) != 2 || text[used] ||
	              a < 1 || b > 65535 || a > b))
		return NUMBER_MALFORMED;
	*first = (uint16_t)a;
	*last = (uint16_t)b;
	return NUMBER_OK;
}

number_result number_block(const char *text, unsigned char ip[16], int *bytes, int *prefix)
{
	size_t n = strcspn(text, "/");
	char address[INET6_ADDRSTRLEN];
	int64_t bits;
	if (!text[n] || n >= sizeof address || text[n + 1] < '0' || text[n + 1] > '9')
		return NUMBER_MALFORMED;
	memcpy(address, text, n);
	address[n] = '\0';
	*bytes = strchr(address, ':') ? 16 : 4;
	if (number_int(text + n + 1, &bits) != NUMBER_OK || bits > 8L * *bytes ||
	    inet_pton(*bytes == 16 ? AF_INET6 : AF_INET, address, ip) != 1)
		return NUMBER_MALFORMED;
	*prefix = (int)bits;
	return NUMBER_OK;
}

void number_put_float(char out[NUMBER_TEXT], double x)
{
	locale_t outer = number_enter();
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(out, NUMBER_TEXT, "%.*g", digits, x);
		if (isnan(x) || strtod(out, NULL) == x)
			break;
	}
	uselocale(outer);
}

void number_put_size(char out[NUMBER_TEXT], int64_t bytes)
{
	int unit = 0;
	while (unit < 4 && bytes && bytes % 1024 == 0) {
		bytes /= 1024;
		unit++;
	}
	snprintf(out, NUMBER_TEXT, "%" PRId64 "%.1s", bytes, &"\0KMGT"[unit]);
}
