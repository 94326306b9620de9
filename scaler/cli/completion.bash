# Completion of scaler's commands for bash and, by bashcompinit, zsh. Made by `scaler completion`.
_scaler_words() {
    case "$1" in
@CASES@
    *) return 1 ;;
    esac
}
_scaler() {
    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" place="${COMP_WORDS[0]##*/}" word found
    for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
        case "$word" in
        -*) ;;
        *) _scaler_words "$place $word" > /dev/null && place="$place $word" ;;
        esac
    done
    found="$(_scaler_words "$place $before" || _scaler_words "$place")"
    COMPREPLY=()
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(
        compgen -W "${found%%@*}" -- "$current"
        case "$found" in
        *@TOML) compgen -f -X '!*.toml' -- "$current"; compgen -d -- "$current" ;;
        *@FILE) compgen -f -- "$current" ;;
        esac
    )
}
complete -o filenames -F _scaler @COMMANDS@
