# Completion of scaler's commands for fish. Made by `scaler completion fish`.
function __scaler_words
    switch "$argv[1]"
@CASES@
        case '*'
            return 1
    end
end
function __scaler_complete
    set -l tokens (commandline -opc)
    set -l before $tokens[-1]
    set -l place (string replace -r '.*/' '' -- $tokens[1])
    set -e tokens[1]
    for word in $tokens
        if not string match -q -- '-*' $word; and __scaler_words "$place $word" > /dev/null
            set place "$place $word"
        end
    end
    set -l found (__scaler_words "$place $before"; or __scaler_words "$place")
    for word in (string split -n ' ' -- $found)
        switch $word
            case @TOML
                __fish_complete_suffix .toml
            case @FILE
                __fish_complete_path (commandline -ct)
            case '*'
                echo $word
        end
    end
end
for command in @COMMANDS@
    complete -c $command -f -a '(__scaler_complete)'
end
