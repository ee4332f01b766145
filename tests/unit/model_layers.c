/* The layers of a model: what is written is read again, whatever their names; what makes no
 * sense is not written. */
#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

#include "cost/planning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 3 };

static char path[200], written[LAYERS][400];
static uint64_t dims[] = {4, 5};
static model_tensor tensors[LAYERS];
static model_layer layers[LAYERS];
static model_file model = {
	.name = "layered", .ntensors = LAYERS, .tensors = tensors, .nlayers = LAYERS, .layers = layers};

static void make(void)
{
	static char name[] = "t";
	for (uint32_t i = 0; i < LAYERS; i++) {
		tensors[i] = (model_tensor){.name = name, .dims = dims, .ndim = 2, .forward = 1e-3};
		layers[i] = (model_layer){.name = written[i],
		                          .first = i,
		                          .ntensors = 1,
		                          .output = 0.1 + 1.0 / 3,
		                          .kept = {1e15, 123456789.987654321},
		                          .reduces = 2};
	}
}

static void round_trip(void)
{
	model_file *m = NULL;
	gradcomp_error e = {0};
	memset(written[0], 'n', 300);
	snprintf(written[0] + 296, 20, ".end");
	snprintf(written[1], sizeof written[1], "two words; and more\t");
	is_int(model_file_write(path, &model, &e), GRADCOMP_OK, "odd names are written %s", e.text);
	is_int(model_file_read(path, &m, &e), GRADCOMP_OK, "and read %s", e.text);
	if (!m)
		return;
	is_int(m->nlayers, LAYERS, "all of them");
	is_int(strlen(m->layers[0].name), 80, "the end of a long name");
	is_str(m->layers[0].name + 76, ".end", "which says the most");
	is_str(m->layers[1].name, "two_words__and_more_", "one word of several");
	is_str(m->layers[2].name, "_", "and one of none");
	for (uint32_t i = 0; i < m->nlayers; i++)
		ok(m->layers[i].output == layers[i].output && m->layers[i].kept[0] == layers[i].kept[0] &&
		           m->layers[i].kept[1] == layers[i].kept[1] && m->layers[i].reduces == 2,
		   "the numbers of layer %u, to the bit", i);
	model_file_free(m);
	unlink(path);
}

static void refused(const char *why)
{
	gradcomp_error e = {0};
	is_int(model_file_write(path, &model, &e), GRADCOMP_ERR_INVALID, "%s", why);
	like(e.text, "layer 1", "says which layer");
	ok(access(path, F_OK) != 0, "and nothing is written");
	make();
}

int main(void)
{
	tmpdir_make("layers");
	snprintf(path, sizeof path, "%s/m.model", tmpdir);
	make();
	round_trip();
	layers[1].name = NULL;
	refused("a layer without a name");
	layers[1].output = NAN;
	refused("bytes that are none");
	layers[1].kept[1] = INFINITY;
	refused("memory without end");
	layers[1].kept[0] = -1;
	refused("less than no memory");
	layers[1].reduces = 65;
	refused("more reductions than there are");
	layers[1].first = 2;
	refused("a tensor in no layer");
	layers[1].ntensors = 0;
	refused("no tensors");
	return done_testing();
}
