/* Links in place of the machine's, and what tells one table of a plan from another. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "tools/plan.h"

/* Those of a machine file, in bits a second. */
static const double rate_least = PLAN_RATE_LEAST, rate_most = 8e14, message_most = 60;

/* Reads a number of at most so many characters and its unit; -1 when it is none. */
static double number_of(const char *text, size_t length, const char *const *units, const double *worth)
{
	char copy[32];
	double x;
	if (length >= sizeof copy)
		return -1;
	snprintf(copy, sizeof copy, "%.*s", (int)length, text);
	for (int i = 0; units[i]; i++) {
		size_t n = strlen(copy), unit = strlen(units[i]);

		if (n <= unit || strcmp(copy + n - unit, units[i]))
			continue;
		copy[n - unit] = '\0';
		return number_float(copy, &x) == NUMBER_OK && x >= 0 ? x * worth[i] : -1;
	}
	return -1;
}

/* Reads bits a second, "10G" or "10Gbit"; -1 when they are none, or none that a link has. */
static double rate_of(const char *text, size_t length)
{
	static const char *const units[] = {"K", "M", "G", "T", "Kbit", "Mbit", "Gbit", "Tbit", NULL};
	static const double worth[] = {1e3, 1e6, 1e9, 1e12, 1e3, 1e6, 1e9, 1e12};
	double bits = number_of(text, length, units, worth);
	return bits >= rate_least && bits <= rate_most ? bits : -1;
}

/* Reads the "50us" behind a slash; negative when there is no slash. */
static bool message_of(const char *slash, double *message)
{
	static const char *const units[] = {"us", "ms", "s", NULL};
	static const double worth[] = {1e-6, 1e-3, 1};
	*message = slash ? number_of(slash + 1, strlen(slash + 1), units, worth) : -1;
	return !slash || (*message >= 0 && *message <= message_most);
}

bool plan_take_link(const char *text, plan_link *out)
{
	const size_t n = strcspn(text, "/");
	out->bits = rate_of(text, n);
	return message_of(text[n] ? text + n : NULL, &out->message) && out->bits > 0;
}

static bool take_rate(plan *p, const char *text, size_t length)
{
	double bits = rate_of(text, length);
	if (bits < 0 || p->nlinks == PLAN_NODES || (p->nlinks && bits <= p->links[p->nlinks - 1].bits))
		return false;
	p->links[p->nlinks++] = (plan_link){bits, -1};
	return true;
}

/* First, last, and what doubling the first comes to between them. */
static bool take_range(plan *p, const char *text, const char *dots, size_t length)
{
	const char *last = dots + 2;
	double bits;
	if (!take_rate(p, text, (size_t)(dots - text)) || !take_rate(p, last, length - (size_t)(last - text)))
		return false;
	bits = p->links[--p->nlinks].bits;
	for (double x = 2 * p->links[0].bits; x < bits * (1 - 1e-9); x *= 2) {
		if (p->nlinks == PLAN_NODES - 1)
			return false;
		p->links[p->nlinks++] = (plan_link){x, -1};
	}
	p->links[p->nlinks++] = (plan_link){bits, -1};
	return true;
}

bool plan_take_links(plan *p, const char *text)
{
	const char *slash = strchr(text, '/'), *dots = strstr(text, "..");
	const char *end = slash ? slash : text + strlen(text);
	double message;
	if (!message_of(slash, &message))
		return false;
	if (dots && dots < end) {
		if (!take_range(p, text, dots, (size_t)(end - text)))
			return false;
	} else {
		for (const char *next; text; text = next) {
			size_t n = strcspn(text, ",/");

			next = text[n] == ',' ? text + n + 1 : NULL;
			if (!take_rate(p, text, n))
				return false;
		}
	}
	for (int i = 0; i < p->nlinks; i++)
		p->links[i].message = message;
	return true;
}

const char *plan_rate_text(double bits, char out[PLAN_TEXT])
{
	static const char *const units[] = {"K", "M", "G", "T"};
	int unit = 0;
	if (!isfinite(bits)) {
		snprintf(out, PLAN_TEXT, "-");
		return out;
	}
	for (bits /= 1e3; bits >= 999.5 && unit < 3; unit++)
		bits /= 1e3;
	snprintf(out, PLAN_TEXT, "%.3g %sbit/s", bits, units[unit]);
	return out;
}

const char *plan_seconds_text(double s, char out[PLAN_TEXT])
{
	if (s >= 1)
		snprintf(out, PLAN_TEXT, "%.3g s", s);
	else if (s >= 1e-3)
		snprintf(out, PLAN_TEXT, "%.3g ms", s * 1e3);
	else
		snprintf(out, PLAN_TEXT, "%.3g us", s * 1e6);
	return out;
}

const char *plan_table_text(const plan *p, const plan_table *t, char out[PLAN_TEXT])
{
	if (p->nlinks > 1)
		return plan_rate_text(8 / t->machine.level[plan_level(t->nodes)].b, out);
	snprintf(out, PLAN_TEXT, "%u node%s", t->nodes, t->nodes == 1 ? "" : "s");
	return out;
}
