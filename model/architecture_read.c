/* Reading a config.json: what all families share, the dispatch, and what becomes of keys that nobody asked for. */
#include "model/architecture_config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { KEYS_MAXIMUM = 1024 }; /* as many as rk_json_object remembers */

/* Keys without influence on count, FLOPs or forward: of storage, generation, tokenizers, the training recipe. */
static const char *const harmless_keys[] = {
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
    "begin_suppress_tokens",
    "bos_token_id",
    "compression_config",
    "dtype",
    "eos_token_id",
    "ep_size",
    "expert_dtype",
    "initial_context_length",
    "kv_cache_dtype",
    "max_length",
    "model_type",
    "num_logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "quantization_config",
    "return_dict",
    "router_aux_loss_coef",
    "router_z_loss_coef",
    "seq_aux",
    "tie_encoder_decoder",
    "torch_dtype",
    "transformers_version",
    "use_cache",
};

/* Keys beside text_config that speak of other modalities; the text model is planned without them. */
static const char *const wrapper_keys[] = {
    "audio_config",      "boi_token_index",     "eoi_token_index",       "image_token_id",
    "image_token_index", "text_config",         "tie_word_embeddings",   "video_token_id",
    "vision_config",     "vision_end_token_id", "vision_start_token_id",
};

/* Keys that change the forward unless they hold the neutral number, null, false, "" or nothing. */
static const struct {
    const char *key;
    double neutral;
} forward_only[] = {
    {"attention_dropout", 0},
    {"attention_multiplier", 1},
    {"attn_logit_softcapping", 0},
    {"attn_pdrop", 0},
    {"clip_qkv", 0},
    {"embd_pdrop", 0},
    {"embedding_multiplier", 1},
    {"final_logit_softcapping", 0},
    {"hidden_dropout", 0},
    {"hidden_dropout_prob", 0},
    {"input_jitter_noise", 0},
    {"layernorm_full_attention_beta", 1},
    {"layernorm_mlp_beta", 1},
    {"logit_scale", 1},
    {"logits_scaling", 1},
    {"query_pre_attn_scalar", 0},
    {"resid_pdrop", 0},
    {"residual_dropout", 0},
    {"residual_multiplier", 1},
    {"router_jitter_noise", 0},
    {"swiglu_limit", 0},
};

/* Parts of names that speak of sizes or spans: an unknown key with such a name may change the count or the FLOPs. */
static const char *const counting_fragments[] = {
    "_dim",   "_heads", "_rank",      "altup",        "bias",      "chunk",     "conv",   "embedding_norm", "expert",
    "hc_",    "hybrid", "index",      "intermediate", "laurel",    "layers",    "layer_", "lora",           "mamba",
    "mtp",    "nextn",  "n_group",    "num_key",      "peri_norm", "per_layer", "proj",   "qk_norm",        "shared",
    "sparse", "ssm",    "topk_group", "vocab",        "width",     "window",
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

void rk_config_fail(struct rk_config *config, const char *format, ...) {
    if (config->status != RK_OK) {
        return;
    }
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    config->status = rk_fail(config->error, RK_USAGE, "%s: %s", config->object.file, text);
}

void rk_config_size(struct rk_config *config, const char *key, int64_t *value) {
    if (config->status == RK_OK) {
        config->status = rk_json_integer(&config->object, key, 1, RK_CONFIG_SIZE_MAXIMUM, value, config->error);
    }
}

void rk_config_optional_size(struct rk_config *config, const char *key, int64_t minimum, int64_t *value) {
    if (config->status == RK_OK) {
        config->status =
            rk_json_optional_integer(&config->object, key, minimum, RK_CONFIG_SIZE_MAXIMUM, value, config->error);
    }
}

void rk_config_optional_flag(struct rk_config *config, const char *key, bool *value) {
    if (config->status == RK_OK) {
        config->status = rk_json_optional_boolean(&config->object, key, value, config->error);
    }
}

void rk_config_optional_number(struct rk_config *config, const char *key, double minimum, double maximum,
                               double *value) {
    if (config->status == RK_OK) {
        config->status = rk_json_optional_number(&config->object, key, minimum, maximum, value, config->error);
    }
}

int rk_config_optional_choice(struct rk_config *config, const char *key, const char *const *choices, int otherwise) {
    char word[64] = "";
    if (config->status == RK_OK) {
        config->status = rk_json_optional_string(&config->object, key, word, sizeof word, config->error);
    }
    if (config->status != RK_OK || !rk_json_has(&config->object, key)) {
        return otherwise;
    }
    for (int i = 0; choices[i] != NULL; i++) {
        if (strcmp(choices[i], word) == 0) {
            return i;
        }
    }
    struct rk_text list = {0};
    for (int i = 0; choices[i] != NULL; i++) {
        rk_text_format(&list, "%s%s", i > 0 ? ", " : "", choices[i]);
    }
    rk_config_fail(config, "%s is '%s', which is none of: %s", key, word, list.data != NULL ? list.data : "");
    rk_text_free(&list);
    return otherwise;
}

void rk_config_forward_only(struct rk_config *config, const char *key) {
    char *keys = config->architecture->forward_only_keys;
    const size_t size = sizeof config->architecture->forward_only_keys;
    const size_t used = strlen(keys);
    snprintf(keys + used, size - used, "%s%s", used > 0 ? ", " : "", key);
}

void rk_config_grouped_query(struct rk_config *config, bool head_dim_may_be_absent) {
    struct rk_architecture *a = config->architecture;
    a->attention = RK_ATTENTION_GQA;
    if (head_dim_may_be_absent) {
        a->kv_heads = a->heads;
        rk_config_optional_size(config, "num_key_value_heads", 1, &a->kv_heads);
        rk_config_optional_size(config, "head_dim", 1, &a->head_dim);
    } else {
        rk_config_size(config, "num_key_value_heads", &a->kv_heads);
        rk_config_size(config, "head_dim", &a->head_dim);
    }
    if (config->status != RK_OK || a->head_dim > 0) {
        return;
    }
    if (a->hidden % a->heads != 0) {
        rk_config_fail(config,
                       "hidden_size is %lld, not a multiple of num_attention_heads, %lld; give head_dim explicitly",
                       (long long)a->hidden, (long long)a->heads);
    }
    a->head_dim = a->hidden / a->heads;
}

bool rk_config_layer_types(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    const cJSON *types = NULL;
    if (config->status != RK_OK || !rk_json_has(&config->object, "layer_types")) {
        return false;
    }
    config->status = rk_json_array(&config->object, "layer_types", &types, config->error);
    int64_t layer = 0;
    a->span = RK_SPAN_FULL;
    for (const cJSON *item = config->status == RK_OK ? types->child : NULL; item != NULL; item = item->next, layer++) {
        const char *type = cJSON_IsString(item) ? item->valuestring : "";
        const bool sliding = strcmp(type, "sliding_attention") == 0;
        const bool chunked = strcmp(type, "chunked_attention") == 0;
        if (!sliding && !chunked && strcmp(type, "full_attention") != 0) {
            rk_config_fail(config,
                           "layer_types has '%.40s'; only full_attention, sliding_attention and chunked_attention are "
                           "modelled",
                           type);
            return true;
        }
        if (layer >= a->layers) {
            break;
        }
        a->limited[layer] = sliding || chunked;
        const enum rk_span span = sliding ? RK_SPAN_SLIDING : RK_SPAN_CHUNKED;
        if (a->limited[layer] && a->span != RK_SPAN_FULL && a->span != span) {
            rk_config_fail(config, "layer_types mixes sliding_attention and chunked_attention, which is not modelled");
        }
        a->span = a->limited[layer] ? span : a->span;
    }
    if (config->status == RK_OK && cJSON_GetArraySize(types) != a->layers) {
        rk_config_fail(config, "layer_types has %d entries, but num_hidden_layers is %lld", cJSON_GetArraySize(types),
                       (long long)a->layers);
    }
    return true;
}

static void read_sizes(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    if (config->status == RK_OK) {
        config->status =
            rk_json_integer(&config->object, "num_hidden_layers", 1, RK_LAYERS_MAX, &a->layers, config->error);
    }
    rk_config_size(config, "hidden_size", &a->hidden);
    rk_config_size(config, "num_attention_heads", &a->heads);
    rk_config_size(config, "vocab_size", &a->vocabulary);
    if (config->status == RK_OK) {
        config->status = rk_json_optional_integer(&config->object, "max_position_embeddings", 1, (int64_t)1 << 40,
                                                  &a->max_positions, config->error);
    }
}

/* Both spellings of position scaling: rope_scaling beside rope_theta, or rope_parameters that holds everything. */
static void read_rope_object(struct rk_config *config, const char *key) {
    struct rk_architecture *a = config->architecture;
    if (config->status != RK_OK || !rk_json_has(&config->object, key)) {
        return;
    }
    struct rk_json_object rope;
    config->status = rk_json_child(&config->object, key, &rope, config->error);
    if (config->status != RK_OK) {
        return;
    }
    const bool named = rk_json_has(&rope, "rope_type") || rk_json_has(&rope, "type");
    if (!named) {
        rk_config_fail(config, "%s has no rope_type; say \"default\" when positions are not scaled", key);
        return;
    }
    char type[sizeof a->rope_scaling] = "";
    config->status = rk_json_optional_string(&rope, "type", type, sizeof type, config->error);
    if (config->status == RK_OK) {
        config->status = rk_json_optional_string(&rope, "rope_type", type, sizeof type, config->error);
    }
    if (config->status == RK_OK) {
        config->status = rk_json_optional_number(&rope, "rope_theta", 1e-3, 1e15, &a->rope_theta, config->error);
    }
    if (config->status == RK_OK) {
        config->status =
            rk_json_optional_number(&rope, "partial_rotary_factor", 1e-6, 1, &a->rotary_fraction, config->error);
    }
    if (config->status == RK_OK && strcmp(type, "default") != 0) {
        memcpy(a->rope_scaling, type, sizeof type);
    }
}

static void read_rest(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    rk_config_optional_number(config, "rms_norm_eps", 1e-30, 0.1, &a->norm_epsilon);
    rk_config_optional_number(config, "rope_theta", 1e-3, 1e15, &a->rope_theta);
    rk_config_optional_number(config, "partial_rotary_factor", 1e-6, 1.0, &a->rotary_fraction);
    read_rope_object(config, "rope_scaling");
    read_rope_object(config, "rope_parameters");
    rk_config_optional_number(config, "initializer_range", 1e-12, 1e3, &a->initializer_range);
    rk_config_optional_flag(config, "tie_word_embeddings", &a->tied_embeddings);
    if (config->status == RK_OK) {
        config->status =
            rk_json_optional_string(&config->object, "hidden_act", a->activation, sizeof a->activation, config->error);
    }
    /* These have two matrices instead of three. */
    if (strcmp(a->activation, "relu2") == 0 || strcmp(a->activation, "") == 0) {
        rk_config_fail(config, "hidden_act '%s' is not a gated activation of this family", a->activation);
    }
}

/* Counts the kinds of blocks; what no block uses is 0. */
static void settle_blocks(struct rk_architecture *a) {
    a->moe_layers = 0;
    for (int64_t layer = 0; layer < a->layers; layer++) {
        a->moe_layers += a->block[layer] == RK_BLOCK_MOE;
    }
    a->dense_layers = a->layers - a->moe_layers;
    if (a->moe_layers > 0) {
        return;
    }
    a->experts = a->top_k = a->expert_hidden = a->shared_hidden = 0;
    a->expert_groups = a->top_groups = 1;
    a->shared_gate = a->router_bias = a->expert_bias = a->correction_bias = a->score_on_input = false;
    a->normalise_top_k = false;
    a->routed_scaling = 1.0;
    a->scoring = RK_SCORING_SOFTMAX;
}

static bool is_neutral(const cJSON *value, double neutral) {
    if (cJSON_IsNumber(value)) {
        return !(fabs(value->valuedouble - neutral) > 0.0);
    }
    if (cJSON_IsString(value)) {
        return value->valuestring[0] == '\0';
    }
    return cJSON_IsNull(value) || cJSON_IsFalse(value) || (cJSON_IsArray(value) && value->child == NULL) ||
           (cJSON_IsObject(value) && value->child == NULL);
}

static bool may_count(const char *key) {
    for (size_t i = 0; i < COUNT(counting_fragments); i++) {
        if (strstr(key, counting_fragments[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static bool is_listed(const char *key, const char *const *keys, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(keys[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether the key is in the table of keys that change the forward only; if so and it has an effect, it is noted. */
static bool note_forward_only(struct rk_config *config, const cJSON *item) {
    for (size_t i = 0; i < COUNT(forward_only); i++) {
        if (strcmp(forward_only[i].key, item->string) == 0) {
            if (!is_neutral(item, forward_only[i].neutral)) {
                rk_config_forward_only(config, item->string);
            }
            return true;
        }
    }
    return false;
}

/* What the family did not ask for is harmless, changes the forward only, may change the count (refused), or is unknown.
 */
static void judge_other_keys(struct rk_config *config, struct rk_text *warnings) {
    struct rk_text unknown = {0};
    size_t index = 0;
    for (const cJSON *item = config->object.object->child; item != NULL; item = item->next, index++) {
        const bool asked_for = (config->object.seen[index / 64] >> (index % 64) & 1) != 0;
        if (asked_for || is_listed(item->string, harmless_keys, COUNT(harmless_keys)) ||
            note_forward_only(config, item)) {
            continue;
        }
        if (may_count(item->string) && !is_neutral(item, 0.0)) {
            rk_config_fail(
                config,
                "key '%.80s' may change the parameter count or FLOPs, and the reader of %s does not know it; "
                "remove the key if the model has no such part, else this model cannot be planned",
                item->string, rk_family_row(config->architecture->family)->name);
        }
        rk_text_format(&unknown, "%s%s", unknown.length > 0 ? ", " : "", item->string);
    }
    if (config->status == RK_OK && unknown.length > 0 && warnings != NULL) {
        rk_text_format(warnings, "%s: unknown keys ignored: %s\n", config->object.file, unknown.data);
    }
    rk_text_free(&unknown);
}

/* "models/Mixtral/config.json" is called Mixtral, "models/report.json" report. */
static void name_from_path(const char *path, char *name, size_t size) {
    const char *end = path + strlen(path);
    const char *base = end;
    while (base > path && base[-1] != '/') {
        base--;
    }
    if (strcmp(base, "config.json") == 0 && base - path >= 2) {
        end = base - 1;
        base = end;
        while (base > path && base[-1] != '/') {
            base--;
        }
    } else if (end - base > 5 && strcmp(end - 5, ".json") == 0) {
        end -= 5;
    }
    snprintf(name, size, "%.*s", (int)(end - base < (ptrdiff_t)size ? end - base : (ptrdiff_t)size - 1), base);
}

static enum rk_status refuse_type(const char *name, const char *type, const cJSON *root, struct rk_error *error) {
    struct rk_text known = {0};
    struct rk_text keys = {0};
    for (int family = 0; family < RK_FAMILY_COUNT; family++) {
        rk_text_format(&known, "%s%s", family > 0 ? ", " : "", rk_family_row((enum rk_family)family)->model_types[0]);
    }
    for (const cJSON *item = root->child; item != NULL; item = item->next) {
        const bool full = keys.length > 400;
        rk_text_format(&keys, "%s%.60s", keys.length > 0 ? ", " : "", full ? "..." : item->string);
        if (full) {
            break;
        }
    }
    enum rk_status status = rk_fail(error, RK_USAGE, "%s: model_type %s%.60s%s; known are %s. Keys found: %s", name,
                                    type[0] ? "'" : "", type, type[0] ? "' is not known" : "is missing",
                                    known.data ? known.data : "", keys.data ? keys.data : "none");
    rk_text_free(&known);
    rk_text_free(&keys);
    return status;
}

/* Finds the text model's object and its family. */
static enum rk_status find_family(const char *name, const cJSON *root, struct rk_config *config,
                                  struct rk_error *error) {
    char type[64] = "";
    struct rk_json_object outer;
    enum rk_status status = rk_json_open(name, "", root, &outer, error);
    if (status != RK_OK) {
        return status;
    }
    config->object = outer;
    status = rk_json_optional_string(&outer, "model_type", type, sizeof type, error);
    if (status == RK_OK && rk_json_has(&outer, "text_config")) {
        status = rk_json_child(&outer, "text_config", &config->object, error);
        if (status == RK_OK) {
            status = rk_json_optional_string(&config->object, "model_type", type, sizeof type, error);
        }
        if (status == RK_OK) {
            status =
                rk_json_optional_boolean(&outer, "tie_word_embeddings", &config->architecture->tied_embeddings, error);
        }
    }
    if (status != RK_OK) {
        return status;
    }
    if (cJSON_GetArraySize(config->object.object) > KEYS_MAXIMUM) {
        return rk_fail(error, RK_USAGE, "%s: more than %d keys; this is not a model's config.json", name, KEYS_MAXIMUM);
    }
    for (int family = 0; family < RK_FAMILY_COUNT; family++) {
        const char *const *names = rk_family_row((enum rk_family)family)->model_types;
        for (int i = 0; names[i] != NULL; i++) {
            if (strcmp(names[i], type) == 0) {
                config->architecture->family = (enum rk_family)family;
                return RK_OK;
            }
        }
    }
    return refuse_type(name, type, config->object.object, error);
}

static void warn_wrapper(const char *name, const cJSON *root, const struct rk_config *config,
                         struct rk_text *warnings) {
    if (config->object.object == root || warnings == NULL) {
        return;
    }
    struct rk_json_object outer;
    if (rk_json_open(name, "", root, &outer, NULL) != RK_OK) {
        return;
    }
    const bool other_parts = rk_json_has(&outer, "vision_config") || rk_json_has(&outer, "audio_config");
    struct rk_text names = {0};
    for (const cJSON *item = root->child; item != NULL; item = item->next) {
        if (!is_listed(item->string, wrapper_keys, COUNT(wrapper_keys)) &&
            !is_listed(item->string, harmless_keys, COUNT(harmless_keys))) {
            rk_text_format(&names, "%s%s", names.length > 0 ? ", " : "", item->string);
        }
    }
    if (names.length > 0) {
        rk_text_format(warnings, "%s: unknown keys beside text_config ignored: %s\n", name, names.data);
    }
    if (other_parts) {
        rk_text_format(warnings, "%s: only the text model is planned; vision and audio parts are left out\n", name);
    }
    rk_text_free(&names);
}

static enum rk_status read_tree(const char *name, const cJSON *root, struct rk_architecture *architecture,
                                struct rk_text *warnings, struct rk_error *error) {
    struct rk_architecture built = {.block_norms = 2,
                                    .activation = "silu",
                                    .rotary_fraction = 1.0,
                                    .routed_scaling = 1.0,
                                    .initializer_range = 0.02,
                                    .expert_groups = 1,
                                    .top_groups = 1};
    struct rk_config config = {.architecture = &built, .error = error};
    name_from_path(name, built.name, sizeof built.name);
    config.status = find_family(name, root, &config, error);
    read_sizes(&config);
    if (config.status == RK_OK) {
        rk_family_row(built.family)->read(&config);
    }
    read_rest(&config);
    if (config.status == RK_OK) {
        settle_blocks(&built);
        judge_other_keys(&config, warnings);
    }
    if (config.status == RK_OK) {
        config.status = rk_architecture_check(name, &built, error);
    }
    if (config.status == RK_OK) {
        warn_wrapper(name, root, &config, warnings);
        *architecture = built;
    }
    return config.status;
}

enum rk_status rk_architecture_parse(const char *name, const char *text, size_t length,
                                     struct rk_architecture *architecture, struct rk_text *warnings,
                                     struct rk_error *error) {
    cJSON *root = NULL;
    enum rk_status status = rk_json_parse(name, text, length, &root, error);
    if (status == RK_OK) {
        status = read_tree(name, root, architecture, warnings, error);
        cJSON_Delete(root);
    }
    return status;
}

enum rk_status rk_architecture_read_file(const char *path, struct rk_architecture *architecture,
                                         struct rk_text *warnings, struct rk_error *error) {
    cJSON *root = NULL;
    enum rk_status status = rk_json_read_file(path, &root, error);
    if (status == RK_OK) {
        status = read_tree(path, root, architecture, warnings, error);
        cJSON_Delete(root);
    }
    return status;
}
