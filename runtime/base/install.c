#include "base/install.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *install_own_file(unsigned long long *inode)
{
	const uintptr_t here = (uintptr_t)(void *)install_own_file;
	char *line = NULL, *found = NULL;
	size_t capacity = 0;
	FILE *f = fopen("/proc/self/maps", "re");
	while (f && !found && getline(&line, &capacity, f) > 0) {
		unsigned long long from, to;
		int at = 0;

		if (sscanf(line, "%llx-%llx %*s %*s %*s %llu %n", &from, &to, inode, &at) != 3 || here < from ||
		    here >= to)
			continue;
		line[strcspn(line, "\n")] = '\0';
		if (!at || line[at] != '/')
			break;
		found = strdup(line + at);
	}
	free(line);
	if (f)
		fclose(f);
	return found;
}

bool install_prefix_of(char *own)
{
	for (int up = 0; up < 2; up++) {
		char *slash = strrchr(own, '/');

		if (slash)
			*slash = '\0';
	}
	return *own != '\0';
}

char *install_path(const char *configured)
{
#ifdef GRADCOMP_RELOCATABLE
	const size_t n = strlen(GRADCOMP_PREFIX);
	if (!strncmp(configured, GRADCOMP_PREFIX "/", n + 1)) {
		unsigned long long inode;
		char *own = install_own_file(&inode), *moved = NULL;

		if (own && install_prefix_of(own) && asprintf(&moved, "%s%s", own, configured + n) < 0)
			moved = NULL;
		free(own);
		if (moved)
			return moved;
	}
#endif
	return strdup(configured);
}
