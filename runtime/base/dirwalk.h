/* Reaching and removing what is below a directory, one component at a time and without
 * following symbolic links: nobody can lead it elsewhere by changing the tree.
 * Paths are relative to the root; "" is the root itself. */
#ifndef BASE_DIRWALK_H
#define BASE_DIRWALK_H

#include <stddef.h>

/* The directory a thread is in, kept open because the next file is mostly in the
 * same one. One thread each. */
typedef struct dirwalk {
	int root, fd; /* fd is -1 while in the root */
	char *path;
	size_t length, capacity;
} dirwalk;

void dirwalk_begin(dirwalk *w, int root);
void dirwalk_end(dirwalk *w);
/* Returns an O_PATH descriptor of the directory, owned by the walk and good until the next call; -1 and errno. */
int dirwalk_to(dirwalk *w, const char *path, size_t length);
/* The same for the directory that holds `path`; *base is its last component. */
int dirwalk_parent(dirwalk *w, const char *path, const char **base);
/* Removes parent/name with all below it, whatever the modes and the depth.
 * 0 also when there is none; -1 and errno. */
int dirwalk_remove(int parent, const char *name);

#endif
