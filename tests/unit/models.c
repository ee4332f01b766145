/* The model files that are shipped: totals as published, shapes as the frameworks name them,
 * layers that are complete; and the script makes these files and no others. */
#include "cost/planning.h"

#include <stdbool.h>

#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

static char folder[3000];

typedef struct published {
	const char *name;
	uint64_t parameters;
	uint32_t ntensors, nlayers;
	double gigaflops; /* for a sample's forward pass, 2 for a multiplication and addition; 0: not compared */
} published;

/* Parameters: torchvision's and Hugging Face's model cards; 0.27 M of ResNet-20 (He et al., table 6), 14.7 M and 66
 * M of the small VGG-16 and the LSTM (gTop-k's table of models), counted. Operations: 4.09, 11.51, 7.73, 4.29,
 * 15.47 and 0.71 G multiplications and additions (torchvision), 40.8 M of ResNet-20. For transformers 2 N s and
 * attention. */
static const published all[] = {
	{"resnet152", 60192808, 467, 0, 2 * 11.51},
	{"densenet161", 28681000, 484, 0, 2 * 7.73},
	{"densenet201", 20013928, 604, 0, 2 * 4.29},
	{"resnet50", 25557032, 161, 0, 2 * 4.09},
	{"vgg16", 138357544, 32, 0, 2 * 15.47},
	{"alexnet", 61100840, 16, 0, 2 * 0.71},
	{"resnet20", 269722, 59, 0, 2 * 0.0408},
	{"vgg16-cifar", 14728266, 54, 0, 0},
	{"lstm-ptb", 66034000, 11, 0, 0},
	{"bert-base", 109482240, 199, 14, 0},
	{"bert-large", 335141888, 391, 26, 0},
	{"gpt2", 124439808, 148, 14, 0},
	{"gpt2-medium", 354823168, 292, 26, 0},
	{"gpt2-large", 774030080, 436, 38, 0},
	{"gpt2-xl", 1557611200, 580, 50, 0},
};
enum { MODELS = sizeof all / sizeof *all };

static uint64_t numel_of(const model_tensor *t)
{
	uint64_t n = 1;
	for (uint32_t d = 0; d < t->ndim; d++)
		n *= t->dims[d];
	return n;
}

static const model_tensor *tensor(const model_file *m, const char *name)
{
	for (uint32_t i = 0; i < m->ntensors; i++)
		if (!strcmp(m->tensors[i].name, name))
			return &m->tensors[i];
	return NULL;
}

static bool has_shape(const model_file *m, const char *name, uint64_t rows, uint64_t columns)
{
	const model_tensor *t = tensor(m, name);
	return t && t->ndim == 2 && t->dims[0] == rows && t->dims[1] == columns;
}

static model_file *read_model(const char *name)
{
	model_file *m = NULL;
	gradcomp_error err;
	char path[4096];
	snprintf(path, sizeof path, "%s/%s.model", folder, name);
	if (model_file_read(path, &m, &err))
		printf("# %s\n", err.text);
	return m;
}

static void one_model(const published *p)
{
	model_file *m = read_model(p->name);
	uint64_t sum = 0;
	double forward = 0, backward = 0;
	if (!ok(m, "%s can be read", p->name))
		return;
	for (uint32_t i = 0; i < m->ntensors; i++) {
		sum += numel_of(&m->tensors[i]);
		forward += m->tensors[i].forward;
		backward += m->tensors[i].backward;
	}
	is_str(m->name, p->name, "it is called as its file is");
	is_int(sum, p->parameters, "%s has as many parameters as published", p->name);
	is_int(m->ntensors, p->ntensors, "in so many tensors");
	is_int(m->nlayers, p->nlayers, "and layers");
	ok(m->batch > 0 && backward > 1.9 * forward && backward < 2.1 * forward,
	   "the backward pass is twice the forward pass");
	if (p->gigaflops) {
		double published = p->gigaflops * 1e9 * (double)m->batch / 62.4e12;

		ok(forward > 0.97 * published && forward < 1.03 * published,
		   "%s: seconds are the published operations at 62.4 TFLOP/s", p->name);
	}
	model_file_free(m);
}

static void transformers(void)
{
	model_file *bert = read_model("bert-large"), *gpt = read_model("gpt2-xl"), *resnet = read_model("resnet50");
	const model_tensor *conv;
	ok(bert && has_shape(bert, "embeddings.word_embeddings.weight", 30522, 1024) &&
	           has_shape(bert, "encoder.layer.23.intermediate.dense.weight", 4096, 1024) &&
	           has_shape(bert, "pooler.dense.weight", 1024, 1024),
	   "BERT-large: names and shapes");
	ok(gpt && has_shape(gpt, "wte.weight", 50257, 1600) && has_shape(gpt, "h.47.attn.c_attn.weight", 1600, 4800) &&
	           has_shape(gpt, "h.0.mlp.c_proj.weight", 6400, 1600),
	   "GPT-2 XL: names and shapes, inputs before outputs");
	/* 24 s h^2 for the matrices of a block, 4 s^2 h for its attention. */
	if (gpt) {
		double s = 1024, h = 1600, block = (24 * s * h * h + 4 * s * s * h) / 62.4e12, got = 0;

		for (uint32_t i = gpt->layers[1].first; i < gpt->layers[1].first + gpt->layers[1].ntensors; i++)
			got += gpt->tensors[i].forward;
		ok(got > block && got < 1.01 * block, "a block takes what its matrices and its attention take");
		ok(gpt->layers[1].kept[0] == 18 * s * h && gpt->layers[1].kept[1] == 48 * s * h + 9 * 25 * s * s,
		   "and keeps what Korthikanti et al. count, in numbers of 4 bytes");
	}
	conv = resnet ? tensor(resnet, "layer4.0.downsample.0.weight") : NULL;
	ok(conv && conv->ndim == 4 && conv->dims[0] == 2048 && conv->dims[1] == 1024, "ResNet-50: names and shapes");
	model_file_free(bert);
	model_file_free(gpt);
	model_file_free(resnet);
}

/* Run again, the script writes the same bytes. */
static void script(void)
{
	char line[8192];
	if (system("command -v python3 >/dev/null")) {
		skip("no python3", "the script makes these files");
		return;
	}
	tmpdir_make("models");
	snprintf(line, sizeof line, "python3 %s/make %s && for f in %s/*.model; do cmp $f %s/${f##*/} || exit 1; done",
	         folder, tmpdir, folder, tmpdir);
	ok(!system(line), "the script makes these files, to the byte");
	snprintf(line, sizeof line, "ls %s | wc -l | grep -qx %d", tmpdir, MODELS);
	ok(!system(line), "and no others");
}

int main(void)
{
	const char *source = getenv("GRADCOMP_SRC");
	snprintf(folder, sizeof folder, "%s/etc/models", source ? source : ".");
	for (int i = 0; i < MODELS; i++)
		one_model(&all[i]);
	transformers();
	script();
	return done_testing();
}
