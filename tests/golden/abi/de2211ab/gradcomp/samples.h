/* gradcomp/samples.h: the samples of a dataset on a filesystem, by number.
 *
 * Two layouts are read: a folder (each file below it is a sample, its label the first
 * folder of its path) and tar shards as WebDataset writes them (members that share a
 * name up to the first dot behind the last '/' are one sample; what follows the dot
 * names its parts).
 *
 *     gradcomp_samples *s;
 *     gradcomp_samples_open(getenv("GRADCOMP_DATA"), NULL, &s, &err);
 *     for (uint64_t i = 0; i < gradcomp_samples_count(s); i++) {
 *             gradcomp_sample_info info = { .struct_size = sizeof info };
 *             gradcomp_samples_info(s, i, &info, &err);
 *             gradcomp_samples_read(s, i, 0, buf, sizeof buf, &bytes, &err);
 *     }
 *
 * Samples are numbered from 0 in the order of their paths as bytes (a folder), or of
 * shards by path and of members in a shard (tar): the same numbers on every node that
 * sees the same files.
 *
 * `path` is a directory, a shard, or a list of shards. A name that does not exist is a list when it has
 * one of `{*?[` or "::" in it: "train-{000..099}.tar" (a range, or words with commas), "train-*.tar",
 * "a.tar::b.tar". A backslash takes the meaning of what follows it. Shards are in the order of the list, those of a
 * glob in that of bytes; every one must be there, and none be there twice.
 *
 * Nothing is guessed. With AUTO these are INVALID, and the error names what to say instead: shards beside
 * folders; a folder with archives somewhere below it; files at its top beside folders, unless `suffixes` leaves only
 * one of the two; folders that are splits (train, val, test) where classes should be; one folder of folders.
 * FOLDER and TAR say what is meant. A directory of shards has all of them at its top, and of one split: INVALID
 * otherwise, also with TAR.
 *
 * A folder. Names that begin with a dot are passed over, files and folders, and so are lost+found, __MACOSX,
 * @eaDir, $RECYCLE.BIN, System Volume Information, Thumbs.db and desktop.ini. The classes
 * are the names of all first folders, sorted as bytes, also of those without a sample:
 * the labels of a part of the data set are those of the whole. Files at the top have
 * no label. Symbolic links are followed as long as they stay in the folder; one that
 * leads out or to nothing, a link to a folder that it is in or below another such
 * link, and what is no file are UNSUPPORTED, by name. Sizes are not asked for until
 * they are wanted.
 *
 * Tar: ustar, pax, GNU and the old form, not compressed; all *.tar at the top of the directory.
 * Parts are called what follows the dot, in small letters. Members that follow each
 * other with one key are a sample. A key that comes again later in the archive is INVALID: it was made
 * unsorted (tar --sort=name), and parts of a sample would be taken for samples. So is a
 * part that comes twice in a sample. Passed over: directories, devices,
 * names without a dot or beginning with it, and what is below a folder __NAME__.
 * Refused by name: sparse members, and links that would be parts. The label is the
 * number in a part "cls", if there is one. An archive without its end was cut off and
 * is refused; archives that stand one behind another in a file are all read.
 *
 * Threads. After open() every call but close() may be made on any thread at the
 * same time, and in a forked child. What a file says is checked before it is
 * believed: a corrupt one is GRADCOMP_ERR_INVALID with its name and offset. What is empty, compressed, a
 * pointer of Git LFS or a web page is called that. A file of
 * a folder is read as it is by then; a shard that is not any more what it was when it
 * was opened is GRADCOMP_ERR_STATE. */
#ifndef GRADCOMP_SAMPLES_H
#define GRADCOMP_SAMPLES_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gradcomp_samples gradcomp_samples;

typedef enum gradcomp_sample_format {
	GRADCOMP_SAMPLES_AUTO = 0, /* *.tar in a directory, as a file or in a list, else a folder, if it can be nothing
	                              else; a directory with compressed shards at its top is UNSUPPORTED */
	GRADCOMP_SAMPLES_FOLDER = 1,
	GRADCOMP_SAMPLES_TAR = 2
} gradcomp_sample_format;

typedef struct gradcomp_samples_options {
	uint32_t struct_size;
	gradcomp_sample_format format;
	/* A folder: only files whose name ends in a dot and one of these, "jpg/png", small or
	 * capital letters; NULL: all. */
	const char *suffixes;
	uint32_t workers; /* threads that list and index while open() runs, 1 to 64; 0: 8 */
	uint32_t reserved0;
} gradcomp_samples_options;

typedef struct gradcomp_sample_info {
	uint32_t struct_size; /* set by the caller */
	uint32_t nparts;      /* 1 in a folder */
	int32_t label;        /* number of the sample's class among the sorted classes; -1: it has none */
	uint32_t reserved0;
	uint64_t bytes;  /* of all parts */
	const char *key; /* path in the folder, or member name up to the dot; the samples' */
} gradcomp_sample_info;

/* Lists the dataset; `path` is a directory or a file. `options` may be NULL. */
GRADCOMP_EXPORT gradcomp_status gradcomp_samples_open(const char *path, const gradcomp_samples_options *options,
                                                      gradcomp_samples **out, gradcomp_error *err);
/* NULL is fine. */
GRADCOMP_EXPORT void gradcomp_samples_close(gradcomp_samples *s);
GRADCOMP_EXPORT uint64_t gradcomp_samples_count(const gradcomp_samples *s);
GRADCOMP_EXPORT gradcomp_sample_format gradcomp_samples_format(const gradcomp_samples *s);
/* Names of the classes by label; NULL behind the last. Owned by the samples. */
GRADCOMP_EXPORT const char *gradcomp_samples_class(const gradcomp_samples *s, uint32_t label);
/* RANGE: there is no such sample. */
GRADCOMP_EXPORT gradcomp_status gradcomp_samples_info(const gradcomp_samples *s, uint64_t index,
                                                      gradcomp_sample_info *info, gradcomp_error *err);
/* Name ("jpg"; "" in a folder) and bytes of a part. Either pointer may be NULL. */
GRADCOMP_EXPORT gradcomp_status gradcomp_samples_part(const gradcomp_samples *s, uint64_t index, uint32_t part,
                                                      const char **name, uint64_t *bytes, gradcomp_error *err);
/* Reads a part into buf. RANGE when `capacity` is less than it has; *bytes says how
 * many it has in either case. */
GRADCOMP_EXPORT gradcomp_status gradcomp_samples_read(const gradcomp_samples *s, uint64_t index, uint32_t part,
                                                      void *buf, uint64_t capacity, uint64_t *bytes,
                                                      gradcomp_error *err);

/* A sample as a value of a data set: to be the `make` of gradcomp_dataset_options with
 * the samples as its ctx. The value, numbers little-endian:
 *
 *     0             4  parts
 *     4             4  label, -1: none
 *     8             4  bytes of head, table and strings
 *     12            4  0
 *     16 + 24 i     8  where the data of part i begins, from the start of the value: a multiple of 64
 *     24 + 24 i     8  its bytes
 *     32 + 24 i     4  where its name begins
 *     36 + 24 i     4  0
 *     16 + 24 parts    the key, then the names of the parts, each ended by a zero byte
 *
 * and the data. STATE: a file changed while it was read. */
struct gradcomp_value_buffer;
GRADCOMP_EXPORT gradcomp_status gradcomp_samples_load(void *samples, uint64_t index, struct gradcomp_value_buffer *out,
                                                      gradcomp_error *err);
/* What such a value says, checked. The key and the name lie in the value. Pointers but
 * `value` and `info` may be NULL. */
GRADCOMP_EXPORT gradcomp_status gradcomp_value_sample(const void *value, uint64_t bytes, gradcomp_sample_info *info,
                                                      gradcomp_error *err);
GRADCOMP_EXPORT gradcomp_status gradcomp_value_part(const void *value, uint64_t bytes, uint32_t part, const char **name,
                                                    const void **data, uint64_t *data_bytes, gradcomp_error *err);

#ifdef __cplusplus
}
#endif
#endif
