/* Layouts that look like samples and mean something else are refused by name: what is
 * read must not be guessed. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "io/format/samples_internal.h"
#include "io/format/tar_format.h"

/* Files that hold many samples. */
#define CONTAINERS "tar/" TAR_COMPRESSED "/zip/7z/rar/parquet/arrow/tfrecord/tfrecords/mdb"
/* A pointer of Git LFS has about 130. */
#define POINTER_MAX 1024u

unsigned layout_split(const char *name, bool anywhere)
{
	static const struct {
		const char *word;
		unsigned split;
	} words[] = {{"train", 1}, {"training", 1}, {"val", 2},  {"valid", 2},  {"validation", 2},
	             {"dev", 2},   {"eval", 2},     {"test", 4}, {"testing", 4}};
	unsigned found = 0;
	for (const char *p = name; *p && (anywhere || p == name);) {
		size_t n = 0;
		while (isalpha((unsigned char)p[n]))
			n++;
		for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
			if (strlen(words[i].word) == n && !strncasecmp(p, words[i].word, n))
				found |= words[i].split;
		for (p += n; *p && !isalpha((unsigned char)*p);)
			p++;
		if (p == name)
			break;
	}
	return found;
}

static bool several(unsigned splits)
{
	return splits & (splits - 1);
}

static gradcomp_status shard_below(const char *top, const char *name, gradcomp_error *err)
{
	char one[TEXT_NAME_MAX / 4];
	gradcomp_printable(name, one, sizeof one);
	const char *slash = strrchr(one, '/');
	return error_set(
		err, GRADCOMP_ERR_INVALID,
		"%s holds the shard %s in a folder of it: name the folder whose shards are meant (%s/%.*s), or all "
		"of them (%s/*/*.tar)",
		top, one, top, slash ? (int)(slash - one) : 0, one, top);
}

gradcomp_status layout_check_shards(const file_list *files, const char *path, gradcomp_error *err)
{
	char top[TEXT_NAME_MAX / 4], one[TEXT_NAME_MAX / 4], other[TEXT_NAME_MAX / 4];
	unsigned splits = 0;
	uint64_t first = 0;
	gradcomp_printable(path, top, sizeof top);
	for (uint64_t i = 0; i < files->n; i++) {
		const char *name = files->paths[i];
		if (strchr(name, '/'))
			return shard_below(top, name, err);
		unsigned split = layout_split(name, true);
		if (split && splits && several(splits | split)) {
			gradcomp_printable(files->paths[first], one, sizeof one);
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "%s holds shards of several splits (%s, %s): name those that are meant, as "
			                 "%s/%.*s*.tar",
			                 top, one, gradcomp_printable(name, other, sizeof other), top,
			                 (int)strcspn(one, "0123456789"), one);
		}
		if (split && !splits)
			first = i;
		splits |= split;
	}
	return GRADCOMP_OK;
}

/* The number of the first of the files that hold many samples, or how many files there are. */
static uint64_t first_container(const file_list *files)
{
	uint64_t i = 0;
	while (i < files->n && !listing_suffix(files->paths[i], CONTAINERS))
		i++;
	return i;
}

/* Returns true when all files lie in folders of the only folder. */
static bool nested(const file_list *files)
{
	for (uint64_t i = 0; i < files->n; i++)
		if (files->labels[i] < 0 || strchr(files->paths[i], '/') == strrchr(files->paths[i], '/'))
			return false;
	return files->nfolders == 1 && files->n;
}

gradcomp_status layout_check_folder(const file_list *files, const char *path, bool all, gradcomp_error *err)
{
	char top[TEXT_NAME_MAX / 4], one[TEXT_NAME_MAX / 4], other[TEXT_NAME_MAX / 4];
	uint64_t container = all ? first_container(files) : files->n;
	unsigned splits = 0;
	gradcomp_printable(path, top, sizeof top);
	if (container < files->n && listing_suffix(files->paths[container], "tar"))
		return shard_below(top, files->paths[container], err);
	if (container < files->n)
		return error_set(
			err, GRADCOMP_ERR_INVALID,
			"%s holds %s, which holds samples of its own: unpack it, or say format folder if each file is a "
			"sample",
			top, gradcomp_printable(files->paths[container], one, sizeof one));
	for (uint32_t i = 0, first = 0; i < files->nfolders; i++) {
		unsigned split = layout_split(files->folders[i], false);
		if (split && splits && several(splits | split))
			return error_set(
				err, GRADCOMP_ERR_INVALID,
				"%s holds the folders %s and %s, which are splits and not classes: name the one that is "
				"meant (%s/%s), or say format folder if they are classes",
				top, gradcomp_printable(files->folders[first], one, sizeof one),
				gradcomp_printable(files->folders[i], other, sizeof other), top, one);
		if (split && !splits)
			first = i;
		splits |= split;
	}
	if (nested(files))
		return error_set(
			err, GRADCOMP_ERR_INVALID,
			"%s holds nothing but the folder %s, which holds folders: name it (%s/%s), or say format "
			"folder if it is the only class",
			top, gradcomp_printable(files->folders[0], one, sizeof one), top, one);
	for (uint64_t i = 0; i < files->n && files->nfolders; i++)
		if (files->labels[i] < 0)
			return error_set(
				err, GRADCOMP_ERR_INVALID,
				"%s holds the file %s beside the folder %s: say which files are samples (suffixes, as "
				"jpg/png), or say format folder if %s is a sample without a class",
				top, gradcomp_printable(files->paths[i], one, sizeof one),
				gradcomp_printable(files->folders[0], other, sizeof other), one);
	return GRADCOMP_OK;
}

gradcomp_status layout_check_data(const char *name, const void *data, uint64_t bytes, gradcomp_error *err)
{
	char text[TEXT_NAME_MAX];
	const tar_other *other = bytes < POINTER_MAX ? tar_other_content(data, bytes) : NULL;
	if (!other || !strstr(other->is, "LFS"))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "%s %s: %s", gradcomp_printable(name, text, sizeof text), other->is,
	                 other->remedy);
}
