/* A whole file in memory, which its reader frees. */
#ifndef TESTS_SUPPORT_SLURP_H
#define TESTS_SUPPORT_SLURP_H

#include <stdio.h>
#include <stdlib.h>

/* Ends with a zero after its *bytes (NULL: not told). A file that cannot be read is empty: what is looked for in it is
 * missed. */
static char *slurp(const char *path, size_t *bytes)
{
	size_t n = 0, room = 1 << 16;
	char *text = malloc(room);
	FILE *f = fopen(path, "r");
	while (f && text && (n += fread(text + n, 1, room - 1 - n, f)) == room - 1)
		text = realloc(text, room *= 2);
	if (f)
		fclose(f);
	if (!text) {
		printf("Bail out! no memory for %s\n", path);
		exit(1);
	}
	text[n] = 0;
	if (bytes)
		*bytes = n;
	return text;
}

#endif
