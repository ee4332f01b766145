/* "did you mean": the known name nearest to what a user typed, or that begins with it. */
#ifndef BASE_SUGGEST_H
#define BASE_SUGGEST_H

#define SUGGEST_MAX 64

typedef struct suggest {
	const char *typed;
	int distance; /* edits between it and `name`: insert, delete, replace, swap neighbours */
	char name[SUGGEST_MAX];
	char text[SUGGEST_MAX + 24];
} suggest;

void suggest_start(suggest *s, const char *typed);
void suggest_try(suggest *s, const char *known);
/* " (did you mean 'rank'?)" or, when nothing is near, "". Lives in *s. */
const char *suggest_text(suggest *s);

#endif
