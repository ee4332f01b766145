/* The headers of safetensors files (github.com/huggingface/safetensors): eight bytes of length, little-endian, then
 * JSON: {"NAME": {"dtype": "F32", "shape": [..], "data_offsets": [..]}, ..., "__metadata__": {..}}. */
#ifdef HAVE_JANSSON
#include "tools/plan_import.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fileio.h"
#include "gradcomp/stage.h"

#define HEADER_MOST (100 << 20) /* limit of the format */

typedef struct stored {
	const char *name;
	uint64_t dims[PLAN_DIMS];
	uint32_t ndim;
} stored;

/* Returns true for what is saved with a model and never trained. */
static bool is_buffer(const char *name)
{
	static const char *const endings[] = {
		"running_mean", "running_var", "num_batches_tracked", "inv_freq",
		"position_ids", "attn.bias",   "masked_bias",         "e_score_correction_bias"};
	const size_t n = strlen(name);
	for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
		const size_t m = strlen(endings[i]);

		if (n >= m && !strcmp(name + n - m, endings[i]) && (n == m || name[n - m - 1] == '.'))
			return true;
	}
	return false;
}

/* Where in a pass a part of a name stands: files have tensors in the order of their names. */
static int place(const char *name, bool in_layer)
{
	static const struct {
		const char *part;
		int first, within; /* at the top, and within a layer */
	} places[] = {
		{"input_layernorm", 1, 0},
		{"layernorm_before", 1, 0},
		{"norm1", 1, 0},
		{"ln_1", 1, 0},
		{"post_attention", 1, 2},
		{"layernorm_after", 1, 2},
		{"norm2", 1, 2},
		{"ln_2", 1, 2},
		{"attn", 1, 1},
		{"attention", 1, 1},
		{"embed", 0, 0},
		{"wte", 0, 0},
		{"wpe", 0, 0},
		{"shared.weight", 0, 0},
		{"lm_head", 4, 4},
		{"classifier", 4, 4},
		{"score", 4, 4},
		{"pooler", 4, 4},
		{"ln_f", 3, 3},
		{"final", 3, 3},
		{"norm", 3, 3},
	};

	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		if (strstr(name, places[i].part))
			return in_layer ? places[i].within : places[i].first;
	return in_layer ? 3 : 1;
}

/* Compares as numbers where both have digits. */
static int natural(const char *a, const char *b)
{
	while (*a && *b) {
		if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
			size_t n, m;

			a += strspn(a, "0");
			b += strspn(b, "0");
			n = strspn(a, "0123456789");
			m = strspn(b, "0123456789");
			if (n != m)
				return n < m ? -1 : 1;
			if (n && strncmp(a, b, n))
				return strncmp(a, b, n);
			a += n;
			b += m;
		} else if (*a != *b) {
			return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
		} else {
			a++;
			b++;
		}
	}
	return (*a > 0) - (*b > 0);
}

/* Returns what stands behind the first number between dots, which is the layer's; NULL: there is none. */
static const char *layer_rest(const char *name)
{
	for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
		const size_t n = strspn(dot + 1, "0123456789");

		if (n && dot[1 + n] == '.')
			return dot + 1 + n;
	}
	return NULL;
}

static int in_order(const void *a, const void *b)
{
	const stored *x = a, *y = b;
	const char *p = layer_rest(x->name), *q = layer_rest(y->name);
	int first;
	first = (p ? 2 : place(x->name, false)) - (q ? 2 : place(y->name, false));
	if (first)
		return first;
	if (p && q) {
		char layer[2][300];

		snprintf(layer[0], sizeof layer[0], "%.*s", (int)(p - x->name), x->name);
		snprintf(layer[1], sizeof layer[1], "%.*s", (int)(q - y->name), y->name);
		first = natural(layer[0], layer[1]);
		if (!first)
			first = place(p, true) - place(q, true);
	}
	return first ? first : natural(x->name, y->name);
}

static gradcomp_status bad(const plan_import *to, const char *file, const char *name, const char *what)
{
	char path[300], shown[200];
	return error_set(to->err, GRADCOMP_ERR_INVALID, "model %s: %s%s%s%s",
	                 gradcomp_printable(file, path, sizeof path), name ? "tensor '" : "",
	                 name ? gradcomp_printable(name, shown, sizeof shown) : "", name ? "' " : "", what);
}

static gradcomp_status read_header(const plan_import *to, const char *file, json_t **out)
{
	const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	unsigned char head[8];
	uint64_t n = 0;
	char path[300], *text = NULL;
	gradcomp_status st = GRADCOMP_OK;
	struct stat s;
	*out = NULL;
	if (fd < 0)
		return error_errno(to->err, GRADCOMP_ERR_IO, "model %s", gradcomp_printable(file, path, sizeof path));
	if (fstat(fd, &s) || !S_ISREG(s.st_mode) || fileio_read(fd, head, sizeof head, 0) != sizeof head)
		st = bad(to, file, NULL, "this is no safetensors file: it has not even a header's length");
	for (int i = 0; !st && i < 8; i++)
		n |= (uint64_t)head[i] << (8 * i);
	if (!st && (n < 2 || n > HEADER_MOST || n > (uint64_t)s.st_size - sizeof head))
		st = bad(to, file, NULL,
		         "this is no safetensors file, or is cut off: its header has no length that can be");
	if (!st && !(text = malloc(n)))
		st = error_set(to->err, GRADCOMP_ERR_NOMEM, "%s: no memory for its header", file);
	if (!st && fileio_read(fd, text, n, sizeof head) != (int64_t)n)
		st = error_errno(to->err, GRADCOMP_ERR_IO, "model %s", gradcomp_printable(file, path, sizeof path));
	if (!st) {
		*out = json_loadb(text, n, JSON_DISABLE_EOF_CHECK, NULL);
		if (!json_is_object(*out))
			st = bad(to, file, NULL, "the header of this safetensors file is no JSON object");
	}
	free(text);
	close(fd);
	return st;
}

/* Floats alone have gradients. */
static gradcomp_status take(const plan_import *to, const char *file, const char *name, const json_t *entry, stored *out,
                            bool *is_float)
{
	const char *type = json_string_value(json_object_get(entry, "dtype"));
	const json_t *shape = json_object_get(entry, "shape");
	if (!type || !json_is_array(shape) || json_array_size(shape) > PLAN_DIMS)
		return bad(to, file, name, "has no dtype, or no shape of at most 8 dimensions");
	*is_float = *type == 'F' || !strncmp(type, "BF", 2);
	*out = (stored){.name = name, .ndim = (uint32_t)json_array_size(shape)};
	for (uint32_t d = 0; d < out->ndim; d++) {
		const json_t *n = json_array_get(shape, d);

		if (!json_is_integer(n) || json_integer_value(n) < 0)
			return bad(to, file, name, "has a dimension that is no number");
		out->dims[d] = (uint64_t)json_integer_value(n);
	}
	return GRADCOMP_OK;
}

/* A token's operations. */
static gradcomp_status work(const plan_import *to, const stored *t, double active, bool timed, double *operations)
{
	char shown[200];
	double numel = 1;
	for (uint32_t d = 0; d < t->ndim; d++)
		numel *= (double)t->dims[d];
	*operations = t->ndim < 2 || place(t->name, false) == 0 ? 0 : 2 * numel;
	if (!strstr(t->name, "expert"))
		return GRADCOMP_OK;
	if (active < 0 && !timed)
		return error_set(to->err, GRADCOMP_ERR_UNSUPPORTED,
		                 "model %s: tensor '%s' is an expert's, and no config.json beside it says how many "
		                 "of them a token "
		                 "takes: give --compute SECONDS",
		                 to->path, gradcomp_printable(t->name, shown, sizeof shown));
	*operations *= active < 0 ? 1 : active;
	return GRADCOMP_OK;
}

gradcomp_status plan_safetensors(plan_import *to, char *const *files, size_t nfiles, double active, bool timed)
{
	json_t **header = calloc(nfiles ? nfiles : 1, sizeof *header), *entry;
	stored *all = NULL;
	size_t n = 0, room = 0;
	double numel = 0, convolved = 0;
	gradcomp_status st = header ? GRADCOMP_OK : error_set(to->err, GRADCOMP_ERR_NOMEM, "%s: no memory", to->path);
	const char *name;
	for (size_t i = 0; !st && i < nfiles; i++) {
		st = read_header(to, files[i], &header[i]);
		room += st ? 0 : json_object_size(header[i]);
	}
	if (!st && !(all = calloc(room ? room : 1, sizeof *all)))
		st = error_set(to->err, GRADCOMP_ERR_NOMEM, "%s: no memory", to->path);
	for (size_t i = 0; !st && i < nfiles; i++) {
		json_object_foreach(header[i], name, entry)
		{
			bool is_float = false;

			if (!strcmp(name, "__metadata__") || is_buffer(name))
				continue;
			st = take(to, files[i], name, entry, &all[n], &is_float);
			if (st)
				break;
			n += is_float;
		}
	}
	if (!st && !n)
		st = bad(to, to->path, NULL, "there is no tensor of floats");
	if (!st)
		qsort(all, n, sizeof *all, in_order);
	for (size_t i = 0; !st && i < n; i++) {
		double operations = 0, size = 1;

		for (uint32_t d = 0; d < all[i].ndim; d++)
			size *= (double)all[i].dims[d];
		numel += size;
		convolved += all[i].ndim > 3 ? size : 0;
		st = work(to, &all[i], active, timed, &operations);
		if (!st)
			st = plan_import_tensor(to, all[i].name, all[i].dims, all[i].ndim,
			                        operations * (double)to->tokens);
	}
	if (!st && !timed && convolved > numel / 10)
		st = bad(to, to->path, NULL,
		         "most of it are convolutions, and the file does not say over how many places: give "
		         "--compute SECONDS");
	for (size_t i = 0; header && i < nfiles; i++)
		json_decref(header[i]);
	free(header);
	free(all);
	return st;
}
#endif
