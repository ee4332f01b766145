/* Listing the files below a directory: the folders at its top in parallel, each
 * sorted where it was listed, and put together in the order of the paths. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/thread_pool.h"
#include "io/format/samples_internal.h"

#define TEXT_FIRST 4096u
#define TEXT_BLOCK (1u << 20)

struct list_text {
	struct list_text *next;
	size_t used, size;
	char text[];
};

/* The three strings, one behind the other, in memory of *text, which is NULL at first;
 * NULL without memory. */
static char *list_text_add(struct list_text **text, const char *dir, const char *name, const char *tail)
{
	size_t a = strlen(dir), b = strlen(name), c = strlen(tail), n = a + b + c + 1;
	struct list_text *t = *text;
	if (!t || t->size - t->used < n) {
		size_t size = t ? TEXT_BLOCK : TEXT_FIRST;
		if (size < n)
			size = n;
		if (!(t = malloc(sizeof *t + size)))
			return NULL;
		*t = (struct list_text){.next = *text, .size = size};
		*text = t;
	}
	char *p = t->text + t->used;
	memcpy(p, dir, a);
	memcpy(p + a, name, b);
	memcpy(p + a + b, tail, c + 1);
	t->used += n;
	return p;
}

typedef struct name_list {
	char **at;
	size_t n, capacity;
} name_list;

/* -1 without memory, and when `name` is NULL. */
static int name_list_add(name_list *l, char *name)
{
	if (!name)
		return -1;
	if (l->n == l->capacity) {
		size_t more = l->capacity ? 2 * l->capacity : 16;
		char **p = reallocarray(l->at, more, sizeof *p);
		if (!p)
			return -1;
		l->at = p;
		l->capacity = more;
	}
	l->at[l->n++] = name;
	return 0;
}

bool listing_suffix(const char *name, const char *suffixes)
{
	size_t length = strlen(name);
	if (!suffixes)
		return true;
	for (const char *s = suffixes; *s;) {
		size_t n = strcspn(s, "/"), skip = *s == '.';
		if (n > skip && length > n - skip && name[length - (n - skip) - 1] == '.' &&
		    !strncasecmp(name + length - (n - skip), s + skip, n - skip))
			return true;
		s += n + (s[n] == '/');
	}
	return false;
}

/* Compares two char **, as bytes; for qsort() and bsearch(). */
static int name_list_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void name_list_sort(name_list *l)
{
	if (l->n)
		qsort(l->at, l->n, sizeof *l->at, name_list_order);
}

static void list_text_free(struct list_text *t)
{
	for (struct list_text *next; t; t = next) {
		next = t->next;
		free(t);
	}
}

/* Keeps what is below a folder at the top, or the files at the top themselves. */
struct branch {
	char *folder; /* "NAME/" */
	bool linked;  /* it is a symbolic link */
	int32_t label;
	name_list files;
};

struct listing {
	int root;
	const char *name, *suffixes;
	struct list_text **text; /* a worker's own */
	struct branch *branches;
	size_t n, capacity;
};

/* One worker at one branch. In a folder that is reached through a symbolic link another
 * link to a folder is refused: the number of paths would have no bound. */
struct walk {
	struct listing *l;
	struct list_text **text;
	name_list *files, todo, todo_linked;
	bool top; /* in the root: folders are branches */
};

static gradcomp_status refuse(const struct listing *l, const char *path, const char *what, gradcomp_error *err)
{
	char top[TEXT_NAME_MAX / 2], text[TEXT_NAME_MAX / 2];
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "%s: %s %s", gradcomp_printable(l->name, top, sizeof top),
	                 gradcomp_printable(path, text, sizeof text), what);
}

static gradcomp_status add_branch(struct listing *l, char *folder, bool linked, gradcomp_error *err)
{
	if (folder && l->n == l->capacity) {
		size_t more = l->capacity ? 2 * l->capacity : 64;
		struct branch *p = reallocarray(l->branches, more, sizeof *p);
		if (p) {
			l->branches = p;
			l->capacity = more;
		}
	}
	if (!folder || l->n == l->capacity)
		return text_cannot(err, "list", l->name);
	l->branches[l->n++] = (struct branch){.folder = folder, .linked = linked};
	return GRADCOMP_OK;
}

static gradcomp_status add_folder(struct walk *w, const char *dir, const char *name, bool linked, gradcomp_error *err)
{
	char *p = list_text_add(w->text, dir, name, "/");
	if (w->top)
		return add_branch(w->l, p, linked, err);
	return name_list_add(linked ? &w->todo_linked : &w->todo, p) < 0 ? text_cannot(err, "list", w->l->name)
	                                                                 : GRADCOMP_OK;
}

/* Returns true when `st` is a directory on the way to `dir`. */
static bool above(const struct listing *l, const char *dir, const struct stat *st)
{
	char path[PATH_MAX];
	size_t n = strlen(dir);
	for (bool more = true; more && n < sizeof path;) {
		struct stat other;
		memcpy(path, dir, n);
		path[n] = 0;
		int fd = openat_beneath(l->root, path, O_PATH | O_DIRECTORY);
		bool same =
			fd >= 0 && fstat(fd, &other) == 0 && other.st_dev == st->st_dev && other.st_ino == st->st_ino;
		if (fd >= 0)
			close(fd);
		if (same)
			return true;
		more = n > 0;
		while (n && dir[--n] != '/')
			;
	}
	return false;
}

static gradcomp_status add_link(struct walk *w, const char *dir, bool linked, const char *name, gradcomp_error *err)
{
	char path[PATH_MAX];
	struct stat st;
	bool wanted = listing_suffix(name, w->l->suffixes);
	int fd = -1;
	if ((size_t)snprintf(path, sizeof path, "%s%s", dir, name) < sizeof path)
		fd = openat_beneath(w->l->root, path, O_PATH);
	else
		errno = ENAMETOOLONG;
	if (fd < 0 && !wanted)
		return GRADCOMP_OK;
	if (fd < 0 && (errno == EXDEV || errno == ENOENT || errno == ELOOP || errno == ENOTDIR))
		return refuse(w->l, path, "is a symbolic link that leads out of the dataset or to nothing", err);
	int bad = fd < 0 || fstat(fd, &st) < 0, e = errno;
	if (fd >= 0)
		close(fd);
	errno = e;
	if (bad)
		return text_cannot(err, "look at", path);
	if (S_ISDIR(st.st_mode)) {
		if (linked)
			return refuse(w->l, path, "is a symbolic link to a directory, below another such link", err);
		if (above(w->l, dir, &st))
			return refuse(w->l, path, "is a symbolic link to a directory that it is in", err);
		return add_folder(w, dir, name, true, err);
	}
	if (!wanted)
		return GRADCOMP_OK;
	if (!S_ISREG(st.st_mode))
		return refuse(w->l, path, "leads to what is neither a file nor a directory", err);
	return name_list_add(w->files, list_text_add(w->text, dir, name, "")) < 0 ? text_cannot(err, "list", path)
	                                                                          : GRADCOMP_OK;
}

/* Returns true for what systems and programs leave in folders and nobody means as a sample or a class. */
bool listing_passed_over(const char *name)
{
	static const char *const names[] = {
		"lost+found", "__MACOSX",   "@eaDir", "$RECYCLE.BIN", "System Volume Information",
		"Thumbs.db",  "desktop.ini"};
	if (name[0] == '.')
		return true;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}

static gradcomp_status add_entry(struct walk *w, int fd, const char *dir, bool linked, const struct dirent *de,
                                 gradcomp_error *err)
{
	unsigned type = de->d_type;
	struct stat st;
	if (type == DT_UNKNOWN) {
		if (fstatat(fd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return text_cannot(err, "look at", de->d_name);
		type = IFTODT(st.st_mode);
	}
	if (type == DT_DIR)
		return add_folder(w, dir, de->d_name, linked, err);
	if (type == DT_LNK)
		return add_link(w, dir, linked, de->d_name, err);
	if (!listing_suffix(de->d_name, w->l->suffixes))
		return GRADCOMP_OK;
	char *path = list_text_add(w->text, dir, de->d_name, "");
	if (path && type != DT_REG)
		return refuse(w->l, path, "is neither a file nor a directory", err);
	return name_list_add(w->files, path) < 0 ? text_cannot(err, "list", w->l->name) : GRADCOMP_OK;
}

static gradcomp_status list_dir(struct walk *w, const char *dir, bool linked, gradcomp_error *err)
{
	int fd = openat_beneath(w->l->root, dir, O_RDONLY | O_DIRECTORY);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	gradcomp_status st = GRADCOMP_OK;
	struct dirent *de;
	if (!d) {
		st = text_cannot(err, "list", *dir ? dir : w->l->name);
		if (fd >= 0)
			close(fd);
		return st;
	}
	while (!st && (errno = 0, de = readdir(d)))
		if (!listing_passed_over(de->d_name))
			st = add_entry(w, fd, dir, linked, de, err);
	if (!st && errno)
		st = text_cannot(err, "list", *dir ? dir : w->l->name);
	closedir(d);
	return st;
}

static gradcomp_status list_branch(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err)
{
	struct listing *l = ctx;
	struct branch *b = &l->branches[i];
	struct walk w = {.l = l, .text = &l->text[worker], .files = &b->files};
	gradcomp_status st = list_dir(&w, b->folder, b->linked, err);
	while (!st && (w.todo.n || w.todo_linked.n)) {
		bool linked = !w.todo.n;
		name_list *todo = linked ? &w.todo_linked : &w.todo;
		st = list_dir(&w, todo->at[--todo->n], linked, err);
	}
	free(w.todo.at);
	free(w.todo_linked.at);
	name_list_sort(&b->files);
	return st;
}

static int by_folder(const void *a, const void *b)
{
	return strcmp(((const struct branch *)a)->folder, ((const struct branch *)b)->folder);
}

static void append(file_list *out, name_list *files, int32_t label)
{
	for (size_t i = 0; i < files->n; i++) {
		out->paths[out->n] = files->at[i];
		out->labels[out->n++] = label;
	}
	free(files->at);
	*files = (name_list){0};
}

/* Folders count by their names, "a" before "a-b"; paths are in the order of bytes,
 * "a-b/x" before "a/x". */
static gradcomp_status number_folders(struct listing *l, uint32_t worker, file_list *out, gradcomp_error *err)
{
	char **sorted = calloc(l->n + 1, sizeof *sorted);
	out->folders = sorted;
	for (size_t i = 0; sorted && i < l->n; i++) {
		size_t n = strlen(l->branches[i].folder) - 1;
		if (!(sorted[i] = list_text_add(&l->text[worker], l->branches[i].folder, "", "")))
			return text_cannot(err, "list", l->name);
		sorted[i][n] = 0;
	}
	if (!sorted || l->n > INT32_MAX)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for %zu folders", l->n);
	qsort(sorted, l->n, sizeof *sorted, name_list_order);
	out->nfolders = (uint32_t)l->n;
	for (size_t i = 0; i < l->n; i++) {
		char *name = l->branches[i].folder, *slash = name + strlen(name) - 1, **at;
		*slash = 0;
		at = bsearch(&name, sorted, l->n, sizeof *sorted, name_list_order);
		*slash = '/';
		l->branches[i].label = (int32_t)(at - sorted);
	}
	return GRADCOMP_OK;
}

/* Puts together what was listed; `top` are the files in the root itself. */
static gradcomp_status gather(struct listing *l, name_list *top, file_list *out, gradcomp_error *err)
{
	size_t n = top->n, t = 0;
	gradcomp_status st = number_folders(l, 0, out, err);
	for (size_t i = 0; i < l->n; i++)
		n += l->branches[i].files.n;
	if (st)
		return st;
	out->paths = calloc(n + 1, sizeof *out->paths);
	out->labels = calloc(n + 1, sizeof *out->labels);
	if (!out->paths || !out->labels)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for %zu files", n);
	name_list_sort(top);
	if (l->n)
		qsort(l->branches, l->n, sizeof *l->branches, by_folder);
	for (size_t i = 0; i <= l->n; i++) {
		for (; t < top->n && (i == l->n || strcmp(top->at[t], l->branches[i].folder) < 0); t++) {
			out->paths[out->n] = top->at[t];
			out->labels[out->n++] = -1;
		}
		if (i < l->n)
			append(out, &l->branches[i].files, l->branches[i].label);
	}
	return GRADCOMP_OK;
}

gradcomp_status listing_files(int root, const char *name, const char *suffixes, uint32_t workers, file_list *out,
                              gradcomp_error *err)
{
	struct listing l = {.root = root, .name = name, .suffixes = suffixes};
	name_list top = {0};
	gradcomp_status st;
	*out = (file_list){.text = calloc(workers, sizeof *out->text), .ntext = workers};
	if (!(l.text = out->text))
		return text_cannot(err, "list", name);
	struct walk w = {.l = &l, .text = &l.text[0], .files = &top, .top = true};
	st = list_dir(&w, "", false, err);
	if (!st)
		st = thread_pool_each((int)workers, l.n, list_branch, &l, err);
	if (!st)
		st = gather(&l, &top, out, err);
	for (size_t i = 0; i < l.n; i++)
		free(l.branches[i].files.at);
	free(l.branches);
	free(top.at);
	if (st)
		listing_clear(out);
	return st;
}

void listing_clear(file_list *l)
{
	for (uint32_t i = 0; l->text && i < l->ntext; i++)
		list_text_free(l->text[i]);
	free(l->text);
	free(l->folders);
	free(l->paths);
	free(l->labels);
	*l = (file_list){0};
}
