#include "base/suggest.h"

#include <stdio.h>
#include <string.h>

static int min3(int a, int b, int c)
{
	int m = a < b ? a : b;
	return m < c ? m : c;
}

/* Computes the optimal string alignment distance; both shorter than SUGGEST_MAX. */
static int suggest_distance(const char *a, const char *b)
{
	int rows[3][SUGGEST_MAX];
	int *before = rows[0], *last = rows[1], *now = rows[2];
	int n = (int)strlen(a), m = (int)strlen(b);
	for (int j = 0; j <= m; j++)
		last[j] = j;
	for (int i = 1; i <= n; i++) {
		int *reuse = before;

		now[0] = i;
		for (int j = 1; j <= m; j++) {
			now[j] = min3(last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    before[j - 2] + 1 < now[j])
				now[j] = before[j - 2] + 1;
		}
		before = last;
		last = now;
		now = reuse;
	}
	return last[m];
}

void suggest_start(suggest *s, const char *typed)
{
	size_t n = strlen(typed);
	s->typed = n < SUGGEST_MAX ? typed : "";
	/* One edit in a short word, two in a longer one; never the whole of it. */
	s->distance = n < 3 ? 0 : n < 5 ? 2 : 3;
	s->name[0] = '\0';
}

void suggest_try(suggest *s, const char *known)
{
	int d;
	if (!*s->typed || strlen(known) >= SUGGEST_MAX)
		return;
	d = suggest_distance(s->typed, known);
	if (d > 1 && strlen(s->typed) > 2 && !strncmp(s->typed, known, strlen(s->typed)))
		d = 1; /* the beginning of a name */
	if (d < s->distance) {
		s->distance = d;
		snprintf(s->name, sizeof s->name, "%s", known);
	}
}

const char *suggest_text(suggest *s)
{
	if (!s->name[0])
		return "";
	snprintf(s->text, sizeof s->text, " (did you mean '%s'?)", s->name);
	return s->text;
}
