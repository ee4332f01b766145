/* How many entries a folder has, for tests of what is left behind. */
#ifndef TESTS_SUPPORT_DIR_ENTRIES_H
#define TESTS_SUPPORT_DIR_ENTRIES_H

#include <dirent.h>

static inline int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = -2; /* . and .. */
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

#endif
