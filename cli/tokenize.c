/* reckon tokenize: text to a token file, one token a byte. */
#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"
#include "executor/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { BYTE_VOCABULARY = 256 };

struct tokenize_options {
    const char *out, *format;
    int64_t end_token;
};

static const struct rk_option options[] = {
    {.name = "out",
     .letter = 'o',
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct tokenize_options, out),
     .value = "FILE",
     .help = "the token file to write; appears whole or not at all"},
    {.name = "format",
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct tokenize_options, format),
     .choices = "u16|u32|llmc|npy|npy-u32",
     .help = "raw little-endian uint16 (nanoGPT) or uint32, llm.c's header with uint16, NumPy with uint16 or uint32 "
             "(default: by the ending of FILE: .npy, .u32, else u16)"},
    {.name = "end-token",
     .type = RK_OPTION_COUNT,
     .offset = offsetof(struct tokenize_options, end_token),
     .value = "N",
     .maximum = INT32_MAX,
     .help = "write token N after each input (default: nothing between inputs)"},
};

const struct rk_arguments rk_cli_tokenize_arguments = {
    .name = "tokenize",
    .summary = "Write text as a token file, one token a byte",
    .operands = "INPUT...",
    .minimum_operands = 1,
    .maximum_operands = -1,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description =
        "Every byte of the inputs becomes the token of its value, so the vocabulary is 256 (or N + 1 with\n"
        "--end-token N). INPUT - is standard input. Files made by other tokenizers need no conversion: `run`\n"
        "reads the formats of nanoGPT, llm.c and OLMo as they are.",
    .examples = "  reckon tokenize examples/text/kjv.txt --out kjv.u16\n"
                "  cat *.txt | reckon tokenize - --out all.npy --end-token 256",
};

static const struct format {
    const char *name;
    enum rk_token_format format;
    int token_bytes;
} formats[] = {
    {"u16", RK_TOKEN_RAW, 2}, {"u32", RK_TOKEN_RAW, 4},     {"llmc", RK_TOKEN_LLMC, 2},
    {"npy", RK_TOKEN_NPY, 2}, {"npy-u32", RK_TOKEN_NPY, 4},
};

static const struct format *choose_format(const char *name, const char *out) {
    if (name == NULL)
        name = rk_ends_in(out, ".npy") ? "npy" : rk_ends_in(out, ".u32") ? "u32" : "u16";
    const struct format *found = formats;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0)
            found = &formats[i];
    return found;
}

static enum rk_status add_input(struct rk_cli *cli, const char *path, const char *out, struct rk_token_writer *writer) {
    bool standard = strcmp(path, "-") == 0;
    int descriptor = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return rk_fail(&cli->error, RK_USAGE, "%s: cannot open: %s; check the name and its permissions", path,
                       strerror(errno));
    enum rk_status status = RK_OK;
    while (status == RK_OK) {
        unsigned char bytes[8192];
        int32_t tokens[sizeof bytes];
        ssize_t got = read(descriptor, bytes, sizeof bytes);
        if (*cli->interrupted)
            status = rk_fail(&cli->error, RK_INTERRUPTED, "interrupted; %s was not written", out);
        else if (got < 0 && errno != EINTR)
            status = rk_fail(&cli->error, RK_USAGE, "%s: cannot read: %s", path, strerror(errno));
        else if (got == 0)
            break;
        for (ssize_t i = 0; i < got; i++)
            tokens[i] = bytes[i];
        if (status == RK_OK && got > 0)
            status = rk_token_writer_add(writer, tokens, got, &cli->error);
    }
    if (!standard)
        close(descriptor);
    return status;
}

static void print_result(struct rk_cli *cli, const char *out, const struct format *format, int64_t tokens,
                         int64_t vocabulary) {
    if (!cli->json) {
        fprintf(cli->out, "%s: %lld tokens of %d bytes (%s), vocabulary %lld\n", out, (long long)tokens,
                format->token_bytes, rk_token_format_name(format->format), (long long)vocabulary);
        return;
    }
    struct rk_text quoted = {0};
    rk_json_add_quoted(&quoted, out);
    fprintf(cli->out,
            "{\n  \"file\": %s,\n  \"format\": \"%s\",\n  \"token_bytes\": %d,\n  \"tokens\": %lld,\n"
            "  \"vocabulary\": %lld\n}\n",
            quoted.failed ? "null" : quoted.data, rk_token_format_name(format->format), format->token_bytes,
            (long long)tokens, (long long)vocabulary);
    rk_text_free(&quoted);
}

static enum rk_status write_tokens(struct rk_cli *cli, const struct tokenize_options *values,
                                   const struct rk_string_list *inputs) {
    const struct format *format = choose_format(values->format, values->out);
    struct rk_token_writer writer;
    enum rk_status status = rk_cli_check_outputs(inputs->items, inputs->count, &values->out, 1, &cli->error);
    if (status == RK_OK)
        status = rk_token_writer_open(values->out, format->format, format->token_bytes, &writer, &cli->error);
    if (status != RK_OK)
        return status;
    for (size_t i = 0; i < inputs->count && status == RK_OK; i++) {
        status = add_input(cli, inputs->items[i], values->out, &writer);
        const int32_t end = (int32_t)values->end_token;
        if (status == RK_OK && values->end_token >= 0)
            status = rk_token_writer_add(&writer, &end, 1, &cli->error);
    }
    int64_t tokens = writer.count;
    if (status == RK_OK)
        status = rk_token_writer_commit(&writer, &cli->error);
    else
        rk_token_writer_abandon(&writer);
    if (status != RK_OK)
        return status;
    if (format->format == RK_TOKEN_RAW && format->token_bytes == 4 && !rk_ends_in(values->out, ".u32"))
        rk_log_write(&cli->log, RK_LOG_WARNING,
                     "%s: the name does not say that tokens have 4 bytes; end it in .u32, or "
                     "say --token-bytes 4 when it is used",
                     values->out);
    int64_t vocabulary = values->end_token >= BYTE_VOCABULARY ? values->end_token + 1 : BYTE_VOCABULARY;
    print_result(cli, values->out, format, tokens, vocabulary);
    return RK_OK;
}

enum rk_status rk_cli_tokenize(struct rk_cli *cli, int argc, char **argv) {
    struct tokenize_options values = {.end_token = -1};
    struct rk_string_list inputs = {0};
    enum rk_status status = rk_cli_parse(cli, &rk_cli_tokenize_arguments, argc, argv, &values, &inputs);
    if (status == RK_OK && values.out == NULL)
        status = rk_fail(&cli->error, RK_USAGE, "tokenize: say where to write with --out FILE");
    else if (status == RK_OK)
        status = write_tokens(cli, &values, &inputs);
    rk_string_list_free(&inputs);
    return status;
}
