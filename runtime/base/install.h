/* Where this gradcomp lies. Any thread. */
#ifndef BASE_INSTALL_H
#define BASE_INSTALL_H

/* The file that this code was loaded from: libgradcomp.so, or a program that has it within. As the
 * kernel names it: neither argv[0] nor a link says so. malloc'ed; NULL when the kernel does not say.
 * *inode: that of the file then; another may have its name by now. */
char *install_own_file(unsigned long long *inode);
/* Cuts a path down to the folder above the one that it lies in: to PREFIX of PREFIX/lib/libgradcomp.so and
 * PREFIX/bin/gradcomp. False when there is none, as for a library in / or right below it. */
_Bool install_prefix_of(char *own);
/* Returns a path of `configure`, malloc'ed; NULL without memory. Where the build can be moved
 * (--enable-relocatable), one below its prefix is below the prefix that this code lies in. Settings files do not
 * move. */
char *install_path(const char *configured);

#endif
